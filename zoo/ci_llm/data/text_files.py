"""Prompts with answers: the files of a data set, and the format that turns a record into text."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from zoo.common.foreign_files import load_json, read_lines

TABLES = (".parquet", ".arrow", ".feather")
PARTS = (".jsonl", *TABLES)  # in a folder of one split; the .json files of Hugging Face there are metadata
SUFFIXES = (".json", *PARTS)
SPLIT_NAMES = {"train": ("train",), "val": ("val", "valid", "validation", "dev"), "test": ("test",)}


class Example(NamedTuple):
    """A prompt with its answer, and its origin: name of the file, line (or row) from 1."""

    prompt: str
    answer: str
    file: str
    line: int


@dataclass(frozen=True)
class TextFormat:
    """How a record becomes text. Prompt and answer are tokenised apart, so a space between them is the answer's.

    Attributes:
        prompt_field: of a record, holds the prompt.
        answer_field: of a record, holds the answer.
        template: of the model's input, with `{prompt}`.
        answer_template: of the text to generate, with `{answer}`; EOS follows.
        too_long: "truncate" cuts the end of an answer that is too long, "drop" leaves the text out.
    """

    prompt_field: str = "question"
    answer_field: str = "answer"
    template: str = "Question: {prompt}\nAnswer:"
    answer_template: str = " {answer}"
    too_long: Literal["truncate", "drop"] = "truncate"

    def __post_init__(self) -> None:
        for key, field in (("template", "{prompt}"), ("answer_template", "{answer}")):
            if field not in getattr(self, key):
                raise ValueError(f"{key} must contain {field}, found {getattr(self, key)!r}")

    def format_prompt(self, prompt: str) -> str:
        """The model's input."""
        return self.template.replace("{prompt}", prompt)

    def format_answer(self, answer: str) -> str:
        """The text that the model is to generate."""
        return self.answer_template.replace("{answer}", answer)


def split_files(root: Path, split: str) -> list[Path]:
    """Find the files of a split, in the order of their names; FileNotFoundError without any for training.

    Args:
        root: a file (all of it is for training), or a folder with `train.jsonl` (or .parquet, .arrow), parts
            `train-00000-of-00002.parquet`, or a folder `train`; `test` and `val` (validation, dev) likewise.
    """
    if root.is_file():
        return [root] if split == "train" else []
    if not root.is_dir():
        raise FileNotFoundError(f"no file or folder of texts at {root}; put train.jsonl there, or set ZOO_DATA")
    names = SPLIT_NAMES[split]
    files = sorted(path for path in root.iterdir() if path.suffix in SUFFIXES and path.stem.partition("-")[0] in names)
    for name in names:
        files += sorted(path for path in (root / name).glob("*") if path.suffix in PARTS)
    if not files and split == "train":
        content = ", ".join(sorted(path.name for path in root.iterdir())[:5]) or "nothing"
        raise FileNotFoundError(
            f"{root} has no train.jsonl, train.parquet, train.arrow or folder train; it holds {content}"
        )
    return files


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
        rows = read_table(path, (prompt_field, answer_field)) if path.suffix in TABLES else read_json_lines(path)
        for line, row in rows:
            where = f"{path}, line {line}"
            prompt, answer = (read_text(row, field, where) for field in (prompt_field, answer_field))
            examples.append(Example(prompt, answer, str(path), line))
    return examples


def read_text(record: Any, field: str, where: str) -> str:
    """The text of a record's field; ValueError at `where`: the field is missing, no text, empty, or not Unicode."""
    if not isinstance(record, dict) or field not in record:
        content = ", ".join(map(str, record)) if isinstance(record, dict) else type(record).__name__
        raise ValueError(
            f"{where}: no field {field!r} (found {content}); set prompt_field and answer_field of "
            "data.init_args.text_format"
        )
    text = record[field]
    if not isinstance(text, str):
        cure = "remove the line or complete it" if text is None else "put it into quotes"
        raise ValueError(f"{where}: {field!r} is {text!r:.40}, expected a text; {cure}")
    if not text.strip():
        raise ValueError(f"{where}: {field!r} is empty; remove the line or complete it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: {field!r} holds half of a character ({error.reason}); remove the line") from error
    return text


def text_fields(path: Path) -> list[str]:
    """The names of the texts in the first record of a file; of Parquet and Arrow, of the columns of texts."""
    if path.suffix in TABLES:
        schema = open_table(path, schema_only=True)
        from pyarrow import types  # `open_table` says where it is missing

        kinds = {each.name: each.type.value_type if types.is_dictionary(each.type) else each.type for each in schema}
        is_text = (types.is_string, types.is_large_string, types.is_string_view)
        return [name for name, kind in kinds.items() if any(each(kind) for each in is_text)]
    with path.open("rb") as file:
        line = next(filter(bytes.strip, file), b"{}")
    try:
        record = load_json(line.removeprefix(codecs.BOM_UTF8))
    except ValueError:  # `read_examples` names the line
        return []
    return [name for name, value in record.items() if isinstance(value, str)] if isinstance(record, dict) else []


def read_json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Line numbers, from 1, and contents of a file of JSON lines; ValueError names a line that is no JSON."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            if line.strip():
                yield number, load_json(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error}); expected one object per line") from error


def read_table(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, Any]]:
    """Row numbers, from 1, and these columns of a Parquet or Arrow file."""
    table = open_table(path)
    columns = [name for name in fields if name in table.column_names]
    if len(columns) < len(fields):
        raise ValueError(f"{path}: its columns are {', '.join(table.column_names)}; expected {', '.join(fields)}")
    yield from enumerate(table.select(columns).to_pylist(), 1)


def open_table(path: Path, schema_only: bool = False) -> Any:
    """Open a Parquet or Arrow file as a table of pyarrow, or read its schema."""
    try:
        import pyarrow as pa
        from pyarrow import ipc, parquet
    except ImportError as error:
        raise ValueError(f"{path}: reading it needs pyarrow; pip install 'zoo[llm]'") from error
    try:
        if path.suffix == ".parquet":
            return parquet.read_schema(path) if schema_only else parquet.read_table(path)
        with pa.memory_map(str(path)) as source:
            try:
                reader = ipc.open_file(source)
            except pa.ArrowInvalid:  # Hugging Face's datasets write streams
                source.seek(0)
                reader = ipc.open_stream(source)
            return reader.schema if schema_only else reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path}: no readable {path.suffix[1:]} file ({error})") from error
