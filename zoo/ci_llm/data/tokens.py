"""Tokenised prompts with answers, the boundary between them known; cached in mapped files, put into batches."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.ci_llm.data.text_data import Example, Template, read_examples
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.losses.likelihood import IGNORED, label_positions
from zoo.common.atomic_files import write_atomic
from zoo.training.resume import Key

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
        """Numbers of the examples that are used, in order, in a context of so many tokens.

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
        if cut := int((self.items[:, LENGTH] > context).sum()):
            message = "%d of %d examples are longer than data.init_args.max_length (%d tokens): the ends of "
            log.info(message + "their answers are cut off", cut, len(self), context)
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
        fields: names of prompt and answer.
        folder: of the caches, made if missing; None to keep everything in memory.
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


class TextRows(Dataset[dict[str, Any]]):
    """Rows of one or (packed) several examples.

    Args:
        rows: numbers of the examples of each row.
        context: most tokens of an example; what is longer is cut at its end.
    """

    def __init__(self, tokens: Tokens, rows: Sequence[Sequence[int]], context: int) -> None:
        self.tokens = tokens
        self.rows = rows
        self.context = context

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: Key | int) -> dict[str, Any]:
        """One row: `ids` and `labels` (T,) int64, -100 where the prompt is; `lengths`, tokens of each example in it."""
        ids, labels, lengths = [], [], []
        for index in self.rows[key[1] if isinstance(key, tuple) else key]:
            values, prompt = self.tokens.row(index, self.context)
            learnt = values.astype(np.int64)
            ids.append(learnt.copy())
            learnt[:prompt] = IGNORED
            labels.append(learnt)
            lengths.append(len(values))
        return {
            "ids": torch.from_numpy(np.concatenate(ids)),
            "labels": torch.from_numpy(np.concatenate(labels)),
            "lengths": lengths,
        }


def join_rows(rows: Sequence[dict[str, Any]], pad_id: int, packed: bool = False, streams: int = 1) -> dict[str, Tensor]:
    """Pad rows on the right and join them.

    Args:
        pad_id: fills `input_ids`.
        packed: also mark where examples begin.
        streams: agents with rows of their own; the rows are those of the first agent, then of the second, and so on.

    Returns:
        `input_ids`, `attention_mask` (1 where text is) and `labels`, (B, T) int64, or (K, B, T) with several streams;
        packed also `segment_ids`, the number of the example in its row from 1, 0 for padding: a token attends to those
        of its own number. `label_positions` (M,), or (K, M), are found here, where looking costs no wait for a device,
        see `zoo.ci_llm.losses.likelihood.label_positions`.
    """
    shape = (len(rows), max(len(row["ids"]) for row in rows))
    batch = {
        "input_ids": torch.full(shape, pad_id),
        "attention_mask": torch.zeros(shape, dtype=torch.int64),
        "labels": torch.full(shape, IGNORED),
    }
    if packed:
        batch["segment_ids"] = torch.zeros(shape, dtype=torch.int64)
    for number, row in enumerate(rows):
        length = len(row["ids"])
        batch["input_ids"][number, :length] = row["ids"]
        batch["attention_mask"][number, :length] = 1
        batch["labels"][number, :length] = row["labels"]
        if packed:
            segments = torch.arange(1, len(row["lengths"]) + 1)
            batch["segment_ids"][number, :length] = segments.repeat_interleave(torch.tensor(row["lengths"]))
    if streams > 1:
        batch = {name: value.reshape(streams, -1, shape[1]) for name, value in batch.items()}
    return {**batch, "label_positions": label_positions(batch["labels"])}


def left_padded(prompts: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Prompts as rows that end together: ids and mask (B, T) int64."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(each)) + list(each) for each in prompts])
    lengths = torch.tensor([len(each) for each in prompts])
    return ids, (torch.arange(longest) >= longest - lengths[:, None]).long()
