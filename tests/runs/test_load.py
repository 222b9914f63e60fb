from pathlib import Path
from typing import Any

import pytest

from zoo.runs import load


class Plain:
    """An inference of the user, without annotations."""

    def __init__(self, net, text=None): ...


class Base:
    def __init__(self, net: Any, **kwargs: Any) -> None: ...


@pytest.mark.parametrize(("cls", "kept"), [(Plain, {"net", "text"}), (Base, {"net", "text", "removed"})])
def test_null_components_are_kept_where_the_constructor_takes_them(
    monkeypatch: pytest.MonkeyPatch, cls: type, kept: set[str]
) -> None:
    monkeypatch.setattr(load.registry, "get_class", lambda name, base: cls)
    description = {"inference": "mine.Plain", "components": {"net": 3, "text": None, "removed": None}}
    assert load.build_components(description, Path()).keys() == kept
