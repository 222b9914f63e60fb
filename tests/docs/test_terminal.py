import re

import pytest

from tests.docs.session import COLUMNS, PAGE, STEPS, masked, screen

BLOCKS = re.findall(r"^```text\n\$ (.*?)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


@pytest.mark.slow  # a process for each command
def test_the_terminal_shows_what_the_page_states(tmp_path):
    assert [command for command, _ in BLOCKS] == [step.command for step in STEPS]
    for step, (command, displayed) in zip(STEPS, BLOCKS, strict=True):  # one after the other: a run is gone on with
        lines = screen(step, tmp_path)
        assert masked(lines) == masked(displayed.splitlines()), command
        assert max(map(len, lines)) <= COLUMNS
