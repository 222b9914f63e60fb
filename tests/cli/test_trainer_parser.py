"""The Trainer commands' parser: how config files join, what it says of a wrong value."""

from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from jsonargparse import ActionConfigFile
from jsonargparse.typing import PositiveInt

from zoo.cli.parsing import limit_names
from zoo.cli.trainer import ZooParser

LLAMA = {"model_type": "llama", "hidden_size": 32, "rope": {"theta": 1.0, "kind": "x"}}


def parsed(folder: Path, *backbones: dict[str, Any]) -> dict[str, Any]:
    limit_names()
    parser = ZooParser()
    parser.add_argument("--config", action=ActionConfigFile)
    parser.add_argument("--net.backbone", type=dict[str, Any] | None, default=None)
    for number, backbone in enumerate(backbones):
        (folder / f"{number}.yaml").write_text(yaml.safe_dump({"net": {"backbone": backbone}}))
    files = [f"--config={folder / f'{number}.yaml'}" for number in range(len(backbones))]
    return parser.parse_args(files)["net.backbone"]


def test_mappings_merge_key_by_key(tmp_path: Path) -> None:
    found = parsed(tmp_path, LLAMA, {"hidden_size": 16, "rope": {"theta": 2.0}}, {"layers": 2})
    assert found == {"model_type": "llama", "hidden_size": 16, "rope": {"theta": 2.0, "kind": "x"}, "layers": 2}


def test_another_kind_begins_anew(tmp_path: Path) -> None:
    assert parsed(tmp_path, LLAMA, {"model_type": "gpt2", "n_embd": 8}) == {"model_type": "gpt2", "n_embd": 8}


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (PositiveInt | None, "0", "expected PositiveInt (v>0) or null, got 0"),
        (PositiveInt, "0", "expected PositiveInt (v>0), got 0"),
        (int, "x", "expected int, got x"),
        (Literal["a", "b"] | None, "c", "expected 'a' or 'b' or null, got c"),
        (dict[str, float] | int | None, "{a: b}", "expected dict[str, float] or int or null, got {'a': 'b'}"),
    ],
)
def test_a_wrong_value_is_told_by_what_was_expected(
    kind: Any, value: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = ZooParser(prog="zoo predict")
    parser.add_argument("--some.key", type=kind)
    with pytest.raises(SystemExit):
        parser.parse_args(["--some.key", value])
    assert capsys.readouterr().err == f'zoo predict: error: Parser key "some.key": {told}\n'
