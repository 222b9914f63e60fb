"""Prompts with answers as text: read from files, put into templates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from zoo.common.journal import load_json, read_lines

TABLES = (".parquet", ".arrow", ".feather")
PARTS = (".jsonl", *TABLES)  # in a folder of one split; Hugging Face's have .json files that are no data
SUFFIXES = (".json", *PARTS)
SPLIT_NAMES = {"train": ("train",), "val": ("val", "valid", "validation", "dev"), "test": ("test",)}


class Example(NamedTuple):
    """A prompt with its answer, and where it stands: name of the file, line (or row) from 1."""

    prompt: str
    answer: str
    file: str
    line: int


@dataclass(frozen=True)
class Template:
    """How an example becomes text. Prompt and answer are tokenised apart, so a space between them is the answer's.

    Attributes:
        prompt: holds `{prompt}`.
        answer: holds `{answer}`; EOS follows.
    """

    prompt: str = "Question: {prompt}\nAnswer:"
    answer: str = " {answer}"

    def __post_init__(self) -> None:
        for name, text in asdict(self).items():
            if f"{{{name}}}" not in text:
                raise ValueError(f"the template of the {name} must hold {{{name}}}, found {text!r}")

    def prompt_text(self, prompt: str) -> str:
        """The text that the model is given."""
        return self.prompt.replace("{prompt}", prompt)

    def answer_text(self, answer: str) -> str:
        """The text that the model is to write."""
        return self.answer.replace("{answer}", answer)


def split_files(root: Path, split: str) -> list[Path]:
    """Find the files of a split.

    Args:
        root: a file (all of it is for training), or a folder with `train.jsonl` (or .parquet, .arrow), parts
            `train-00000-of-00002.parquet`, or a folder `train`; `test` and `val` (validation, dev) likewise.

    Returns:
        The files in the order of their names; none where there is no such split, unless it is "train".

    Raises:
        FileNotFoundError: when there is no such folder, or nothing to train on.
        ValueError: when the split has another name.
    """
    if root.is_file():
        return [root] if split == "train" else []
    if not root.is_dir():
        raise FileNotFoundError(f"no file or folder of texts at {root}")
    if split not in SPLIT_NAMES:
        raise ValueError(f"there is no split {split!r}; there are {', '.join(SPLIT_NAMES)}")
    names = SPLIT_NAMES[split]
    known = sorted(path for path in root.glob("*") if path.suffix in SUFFIXES)
    found = [path for path in known if path.stem.partition("-")[0] in names]
    for name in names:
        found += sorted(path for path in (root / name).glob("*") if path.suffix in PARTS)
    if not found and split == "train":
        held = ", ".join(sorted(path.name for path in root.iterdir())[:5]) or "nothing"
        raise FileNotFoundError(f"{root} has no train.jsonl, train.parquet, train.arrow or folder train; it has {held}")
    return found


def read_examples(files: Sequence[Path], prompt_field: str, answer_field: str) -> list[Example]:
    """Read prompts and answers from JSON lines, Parquet or Arrow.

    Raises:
        ValueError: when a line is no JSON, a field is missing or no text, or a prompt or answer is empty; names file
            and line.
    """
    examples = []
    for path in files:
        if not path.is_file():
            raise FileNotFoundError(f"no file of texts at {path}")
        rows = table_rows(path, (prompt_field, answer_field)) if path.suffix in TABLES else json_rows(path)
        for line, row in rows:
            prompt, answer = (_text(row, field, f"{path}, line {line}") for field in (prompt_field, answer_field))
            examples.append(Example(prompt, answer, str(path), line))
    return examples


def _text(row: Any, field: str, where: str) -> str:
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
        raise ValueError(
            f"{where}: no text {field!r} (found {found}); name the fields in data.init_args.prompt_field and "
            "answer_field"
        )
    if not row[field].strip():
        raise ValueError(f"{where}: {field!r} is empty; remove the line or complete it")
    return row[field]


def json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Line numbers, from 1, and contents of a file of JSON lines; a line that is none is named."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            if line.strip():
                yield number, load_json(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error}); expected one object per line") from error


def table_rows(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Row numbers, from 1, and these columns of a Parquet or Arrow file."""
    try:
        import pyarrow as pa
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise ValueError(f"{path}: reading it needs pyarrow; pip install 'zoo[llm]'") from error
    try:
        if path.suffix == ".parquet":
            table = parquet.read_table(path)
        else:
            with pa.memory_map(str(path)) as source:
                try:
                    table = ipc.open_file(source).read_all()
                except pa.ArrowInvalid:  # Hugging Face's datasets write streams
                    source.seek(0)
                    table = ipc.open_stream(source).read_all()
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path}: no readable {path.suffix[1:]} file ({error})") from error
    columns = [name for name in fields if name in table.column_names]
    if len(columns) < len(fields):
        raise ValueError(f"{path}: its columns are {', '.join(table.column_names)}; expected {', '.join(fields)}")
    yield from enumerate(table.select(columns).to_pylist(), 1)
