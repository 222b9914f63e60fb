"""Tokenised prompts with answers, the boundary between them known; cached in mapped files."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from zoo.ci_llm.data.text_data import Example, Template, read_examples
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.common.atomic import write_atomic

log = logging.getLogger(__name__)

TooLong = Literal["truncate", "drop"]

VERSION = 1  # of the cache
BATCH = 4096  # examples that are tokenised at once
START, PROMPT, LENGTH, FILE, LINE = range(5)  # columns of `Tokens.items`


@dataclass
class Tokens:
    """Tokenised examples.

    Attributes:
        ids: of all examples, one after another (n,), int32: prompt, answer, EOS.
        items: (N, 5) int64: start in `ids`, tokens of the prompt, tokens in all, number of the file, line.
    """

    ids: np.ndarray
    items: np.ndarray
    files: list[str]

    def __len__(self) -> int:
        return len(self.items)

    def __getstate__(self) -> dict[str, Any]:
        """Hand over the names of mapped files, not their content: each process maps them itself."""
        return {key: Path(str(it.filename)) if isinstance(it, np.memmap) else it for key, it in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({key: _mapped(it) if isinstance(it, Path) else it for key, it in state.items()})

    def row(self, index: int, most: int) -> tuple[np.ndarray, int]:
        """The first `most` numbers of an example, and how many of them are its prompt."""
        start, prompt, length = self.items[index, :FILE].tolist()
        return np.asarray(self.ids[start : start + min(length, most)]), prompt

    def lengths(self, most: int) -> np.ndarray:
        """Tokens of each example (N,), cut to `most`."""
        return np.minimum(self.items[:, LENGTH], most)

    def fitting(self, context: int, too_long: TooLong) -> np.ndarray:
        """Numbers of the examples that are used, in order.

        Args:
            context: most tokens of an example.
            too_long: cut an answer at its end, or leave longer examples out.

        Raises:
            ValueError: when a prompt leaves no room for an answer, or nothing fits.
        """
        if too_long == "drop":
            kept = np.flatnonzero(self.items[:, LENGTH] <= context)
            if len(kept) < len(self):
                log.info(
                    "%d of %d examples are longer than %d tokens: left out", len(self) - len(kept), len(self), context
                )
            if not len(kept):
                raise ValueError(f"all {len(self)} examples are longer than the context of {context} tokens")
            return kept
        bad = np.flatnonzero(self.items[:, PROMPT] >= context)
        if len(bad):
            item = self.items[bad[0]]
            raise ValueError(
                f"{self.files[item[FILE]]}, line {item[LINE]}: its prompt has {item[PROMPT]} tokens, which leaves no "
                f"room for an answer in a context of {context} ({len(bad)} such examples); raise "
                "data.init_args.max_length, or set too_long: drop"
            )
        return np.arange(len(self))


def tokenise(examples: Sequence[Example], tokenizer: Tokenizer, template: Template) -> Tokens:
    """Turn examples into numbers: what begins a text, prompt, answer, EOS; nothing is cut."""
    if not examples:
        raise ValueError("no examples: the files of texts are empty")
    parts, items = [], []
    files: dict[str, int] = {}
    start = 0
    for first in range(0, len(examples), BATCH):
        several = examples[first : first + BATCH]
        prompts = tokenizer.encode_all([template.prompt_text(each.prompt) for each in several])
        answers = tokenizer.encode_all([template.answer_text(each.answer) for each in several])
        for each, prompt, answer in zip(several, prompts, answers, strict=True):
            if not answer:
                raise ValueError(f"{each.file}, line {each.line}: the tokenizer makes nothing of its answer")
            prompt = [*tokenizer.prefix, *prompt]
            ids = [*prompt, *answer, tokenizer.eos_id]
            items.append((start, len(prompt), len(ids), files.setdefault(each.file, len(files)), each.line))
            parts.append(np.array(ids, dtype=np.int32))
            start += len(ids)
    return Tokens(np.concatenate(parts), np.array(items, dtype=np.int64), list(files))


def tokenise_files(
    files: Sequence[Path], fields: tuple[str, str], tokenizer: Tokenizer, template: Template, folder: Path | None
) -> Tokens:
    """Read and tokenise files, or open the cache of the same files, tokenizer and template.

    Several processes may build a cache at once; each of its files appears whole, the index last.

    Args:
        files: see `read_examples`.
        fields: names of prompt and answer.
        tokenizer: its fingerprint is a part of the cache's name.
        folder: of the caches, made if missing; None to keep everything in memory.

    Returns:
        Tokens, mapped from the cache's files where there is one.
    """
    if folder is None:
        return tokenise(read_examples(files, *fields), tokenizer, template)
    key = _key(files, fields, tokenizer, template)
    index = folder / f"{files[0].parent.name}-{files[0].stem}-{key[:16]}.json"
    cached = _open(index, key)
    if cached is None:
        made = tokenise(read_examples(files, *fields), tokenizer, template)
        for name, array in (("ids", made.ids), ("items", made.items)):
            write_atomic(_beside(index, name), lambda file, array=array: np.save(file, array))  # type: ignore[misc]
        text = json.dumps({"key": key, "shapes": [made.ids.shape, made.items.shape]})
        write_atomic(index, lambda file: file.write(text.encode()))
        cached = _open(index, key)
        if cached is None:
            raise OSError(f"{index}: the cache of tokens that was just written cannot be read; is the disk sound?")
    return Tokens(*cached, [str(path) for path in files])


def _beside(index: Path, name: str) -> Path:
    return index.with_name(f"{index.stem}.{name}.npy")


def _mapped(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _key(files: Sequence[Path], fields: tuple[str, str], tokenizer: Tokenizer, template: Template) -> str:
    contents = []
    for path in files:
        if not path.is_file():
            raise FileNotFoundError(f"no file of texts at {path}")
        with path.open("rb") as file:
            contents.append(hashlib.file_digest(file, "sha256").hexdigest())
    said = [VERSION, contents, fields, tokenizer.fingerprint, asdict(template)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def _open(index: Path, key: str) -> tuple[np.ndarray, np.ndarray] | None:
    """The arrays of a cache; None where it is missing, damaged or another one's."""
    try:
        known = json.loads(index.read_text(encoding="utf-8"))
        ids, items = (_mapped(_beside(index, name)) for name in ("ids", "items"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:
        log.info("tokenising anew: %s", error)
        return None
    whole = known.get("key") == key and known.get("shapes") == [list(ids.shape), list(items.shape)]
    return (ids, items) if whole else None
