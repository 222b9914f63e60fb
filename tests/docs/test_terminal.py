from __future__ import annotations

import re

import pytest

from tests.docs.session import COLUMNS, PAGE, STEPS, masked, screen

BLOCKS = re.findall(r"^```text\n\$ (.*?)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("session")


def test_the_page_has_these_commands():
    assert [command for command, _ in BLOCKS] == [step.command for step in STEPS]


@pytest.mark.parametrize(("step", "shown"), zip(STEPS, [shown for _, shown in BLOCKS], strict=True))
def test_the_terminal_shows_what_the_page_says(step, shown, folder):
    lines = screen(step, folder)
    assert masked(lines) == masked(shown.splitlines())
    assert max(map(len, lines)) <= COLUMNS
