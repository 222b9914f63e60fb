"""The documents keep their word: every code block runs as it stands, every link leads somewhere.

A block is run unless the line before its fence is `<!-- not run: reason -->` or `<!-- run by .ci/run -->`. The blocks
of one document run in order in one folder, so that a later block finds the run of an earlier one; those of an advanced
page run after those of its manual.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs.forked_python import ForkedPython
from tests.harness import REPOSITORY, environment
from zoo.common.systems import list_systems

README = REPOSITORY / "README.md"
DOCUMENTS = [README, *sorted((REPOSITORY / "docs").rglob("*.md"))]
MANUALS = [REPOSITORY / "docs" / f"{system.name}.md" for system in list_systems()]
BY_CI = "<!-- run by .ci/run -->"
NOT_RUN = re.compile(r"<!-- not run: \S.* -->")
PART_OF = re.compile(r"<!-- not run: a part of (\S+) -->")
LINKED = [*sorted(REPOSITORY.glob("*.md")), *DOCUMENTS[1:], *sorted((REPOSITORY / "notebooks").glob("*.ipynb"))]
LINK = re.compile(r"""\]\(([^)\s]+)(?: "[^"]*")?\)|<(?:a|img|audio)\s[^>]*?(?:href|src)="([^"]+)""")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    line: int
    language: str
    before: str
    code: str

    @property
    def skipped(self) -> bool:
        return self.before == BY_CI or NOT_RUN.fullmatch(self.before) is not None


def title(document: Path) -> str:
    return str(document.relative_to(REPOSITORY))


def blocks(document: Path) -> list[Block]:
    results: list[Block] = []
    lines = document.read_text(encoding="utf-8").splitlines()
    start = None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if start is None:
            start = number
            continue
        before = lines[start - 1].strip() if start else ""
        results.append(Block(start + 1, lines[start][3:].strip(), before, "\n".join(lines[start + 1 : number])))
        start = None
    assert start is None, f"{document.name}: the block of line {start} is not closed"
    return results


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(each, marks=pytest.mark.slow) if each in MANUALS else each
        for each in DOCUMENTS
        if each.parent.name != "advanced"
    ],
    ids=title,
)
def test_blocks_run(document: Path, tmp_path: Path) -> None:
    for name in ("configs", "examples", "scripts", "tests"):
        (tmp_path / name).symlink_to(REPOSITORY / name)
    python = ForkedPython(tmp_path / "bin")
    path = [str(tmp_path / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    variables = environment(PATH=os.pathsep.join(path))
    variables.pop("ZOO_DATA", None)  # the documents speak of its default
    pages = [each for each in (document, document.parent / "advanced" / document.name) if each.exists()]
    for page, block in [(each, block) for each in pages for block in blocks(each)]:
        code = block.code
        if block.before == BY_CI:  # without the installation
            code = "\n".join(line for line in code.splitlines() if " -m zoo " in line).replace(".venv/bin/", "")
        elif block.skipped or block.language not in ("bash", "python"):
            continue
        command = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else ["python", "-c"]
        result = subprocess.run(
            [*command, code], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=300
        )
        messages = f"{result.stdout[-2000:]}\n{result.stderr[-4000:]}"
        assert result.returncode == 0, f"{title(page)}:{block.line} ended with {result.returncode}\n{messages}"
    python.close()


@pytest.mark.parametrize("document", DOCUMENTS, ids=title)
def test_every_block_is_run_or_states_why_not_and_quotes_the_code(document: Path) -> None:
    for block in blocks(document):
        assert block.language, f"{document.name}:{block.line} names no language"
        if block.language == "python":
            compile(block.code, f"{document.name}:{block.line}", "exec")
        if block.before.startswith("<!--"):
            assert block.skipped, f"{document.name}:{block.line}: unknown mark {block.before!r}"
        if source := PART_OF.fullmatch(block.before):
            written = (REPOSITORY / source[1]).read_text(encoding="utf-8").splitlines()
            changed = [line for line in block.code.splitlines() if line not in written]
            assert changed == [], f"{document.name}:{block.line}: not in {source[1]}"


@pytest.mark.parametrize("document", LINKED, ids=title)
def test_links_lead_somewhere(document: Path) -> None:
    """Relative links of documents and of notebooks' texts: the file is there, and so is the heading."""
    for pair in LINK.findall(text_of(document)):
        target = "".join(pair)
        if re.match(r"[a-z]+:", target):
            continue
        name, _, heading = target.partition("#")
        file = document.parent / name if name else document
        assert file.exists(), f"{document.name} links to {target}"
        if heading:
            assert heading in headings(file), f"{document.name} links to {target}"


def text_of(document: Path) -> str:
    """What is read: of Markdown all but blocks of code, of a notebook its cells of text."""
    text = document.read_text(encoding="utf-8")
    if document.suffix == ".ipynb":
        cells = [cell["source"] for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown"]
        text = "\n\n".join(cell if isinstance(cell, str) else "".join(cell) for cell in cells)
    return FENCED.sub("", text)


def headings(document: Path) -> set[str]:
    """Anchors as GitHub and the site make them; of headings that repeat only the first, as they number differently."""
    titles = re.findall(r"^#+ (.+)$", text_of(document), flags=re.MULTILINE)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_ci_finds_the_two_commands() -> None:
    marked = [block for block in blocks(README) if block.before == BY_CI]
    assert [block.code.splitlines()[0] for block in marked] == ["python3 -m venv .venv"] * 2
    text = README.read_text(encoding="utf-8")
    for heading, block in zip(("## Train", "## Test"), marked, strict=True):
        section = text.split(f"\n{heading}\n")[1].split("\n## ")[0]
        assert section.split("```bash\n")[1].split("\n```")[0] == block.code


def test_pages_are_whole_and_short() -> None:
    for page in LINKED:
        assert not re.search(r"^(<{7}|>{7}) ", page.read_text(encoding="utf-8"), re.MULTILINE), f"{page}: a conflict"
    lengths = {title(page): len(page.read_text(encoding="utf-8").splitlines()) for page in DOCUMENTS}
    assert lengths["README.md"] <= 110
    assert {page.name: lengths[title(page)] for page in MANUALS if lengths[title(page)] > 200} == {}
    assert sum(length for name, length in lengths.items() if name != "README.md") <= 5500
