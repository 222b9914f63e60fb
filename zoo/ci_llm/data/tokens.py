"""Tokenised prompts with answers, cached in memory-mapped files and joined into batches."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.ci_llm.data.text_files import Example, TextFormat, read_examples
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.losses.likelihood import IGNORED, label_positions
from zoo.common.atomic_files import write_atomic
from zoo.training.resume import Key

log = logging.getLogger(__name__)

VERSION = 2  # of the cache
CHUNK = 4096  # examples that are tokenised at once
START, PROMPT, LENGTH, FILE, LINE = range(5)  # columns of `TokenTable.items`


@dataclass
class TokenTable:
    """Tokenised examples.

    Attributes:
        ids: of all examples, one after another (n,), int32: prompt, answer, EOS.
        items: (N, 5) int64: start in `ids`, tokens of the prompt, tokens in all, number of the file, line.
        files: names of the files.
    """

    ids: np.ndarray
    items: np.ndarray
    files: list[str]

    def __len__(self) -> int:
        return len(self.items)

    def prompt(self, index: int) -> list[int]:
        """Tokens of an example's prompt."""
        start, length = self.items[index, :LENGTH].tolist()
        return self.ids[start : start + length].tolist()

    def digest(self, index: int, max_length: int) -> str:
        """A hash of an example's first tokens, at most `max_length`."""
        start, _, length = self.items[index, :FILE].tolist()
        ids = self.ids[start : start + min(length, max_length)]
        return hashlib.blake2b(ids.tobytes(), digest_size=8).hexdigest()

    def lengths(self, max_length: int) -> np.ndarray:
        """Tokens of each example (N,), at most `max_length`."""
        return np.minimum(self.items[:, LENGTH], max_length)

    def select_fitting(self, max_length: int, text_format: TextFormat) -> np.ndarray:
        """Indices of the examples to use with texts of at most `max_length` tokens, by `text_format.too_long`."""
        is_long = self.items[:, LENGTH] > max_length
        drop = text_format.too_long == "drop"
        if drop and is_long.all():
            raise ValueError(f"all {len(self)} examples are longer than max_length ({max_length} tokens)")
        if is_long.any():
            message = "%d of %d examples are longer than data.init_args.max_length (%d tokens): %s"
            result = "dropped" if drop else "the ends of their answers are cut off"
            log.info(message, is_long.sum(), len(self), max_length, result)
        return np.flatnonzero(~is_long) if drop else np.arange(len(self))


def tokenise(examples: Sequence[Example], tokenizer: Tokenizer, text_format: TextFormat) -> TokenTable:
    """Tokenise examples: the tokenizer's prefix, prompt, answer, EOS; nothing is cut."""
    if not examples:
        raise ValueError("no examples: the files of texts are empty")
    arrays, items = [], []
    files: dict[str, int] = {}
    start = 0
    for first in range(0, len(examples), CHUNK):
        chunk = examples[first : first + CHUNK]
        prompts = tokenizer.encode_all([text_format.format_prompt(example.prompt) for example in chunk])
        answers = tokenizer.encode_all([text_format.format_answer(example.answer) for example in chunk])
        for example, prompt, answer in zip(chunk, prompts, answers, strict=True):
            if not answer:
                raise ValueError(f"{example.file}, line {example.line}: its answer has no tokens")
            prompt = [*tokenizer.prefix, *prompt]
            ids = [*prompt, *answer, tokenizer.eos_id]
            items.append((start, len(prompt), len(ids), files.setdefault(example.file, len(files)), example.line))
            arrays.append(np.array(ids, dtype=np.int32))
            start += len(ids)
    return TokenTable(np.concatenate(arrays), np.array(items, dtype=np.int64), list(files))


def tokenise_files(
    files: Sequence[Path], tokenizer: Tokenizer, text_format: TextFormat, cache: Path | None
) -> TokenTable:
    """Read and tokenise files, or open the cache of the same files, tokenizer and format.

    Several processes may write a cache at once; each of its files appears complete.

    Args:
        cache: folder of the caches, created if missing; None for memory only.
    """
    fields = (text_format.prompt_field, text_format.answer_field)
    if cache is None:
        return tokenise(read_examples(files, *fields), tokenizer, text_format)
    key = _cache_key(files, tokenizer, text_format)
    paths = [cache / f"{files[0].parent.name}-{files[0].stem}-{key[:16]}.{name}.npy" for name in ("ids", "items")]
    arrays = _open_cache(paths)
    if arrays is None:
        table = tokenise(read_examples(files, *fields), tokenizer, text_format)
        for path, array in zip(paths, (table.ids, table.items), strict=True):
            write_atomic(path, lambda file, array=array: np.save(file, array))  # type: ignore[misc]
        arrays = [_map_array(path) for path in paths]
    ids, items = arrays
    return TokenTable(ids, items, [str(path) for path in files])


def _map_array(path: Path) -> np.ndarray:
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _cache_key(files: Sequence[Path], tokenizer: Tokenizer, text_format: TextFormat) -> str:
    contents = []
    for path in files:
        if not path.is_file():
            raise FileNotFoundError(f"no file of texts at {path}")
        with path.open("rb") as file:
            contents.append(hashlib.file_digest(file, "sha256").hexdigest())
    fast = getattr(tokenizer.backend, "backend_tokenizer", None)  # which has the normaliser and the merges, too
    facts = [VERSION, contents, tokenizer.fingerprint(), None if fast is None else fast.to_str(), asdict(text_format)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _open_cache(paths: Sequence[Path]) -> list[np.ndarray] | None:
    """The arrays of a cache; None where one is missing or damaged."""
    try:
        return [_map_array(path) for path in paths]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:
        log.info("tokenising again: %s", error)
        return None


class TextRows(Dataset[dict[str, Tensor]]):
    """Some examples of a table as rows.

    Args:
        indices: of the examples (N,).
        max_length: tokens of a row; what is longer is cut at its end.
    """

    def __init__(self, tokens: TokenTable, indices: np.ndarray, max_length: int) -> None:
        self.tokens, self.indices, self.max_length = tokens, indices, max_length

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, key: Key | int) -> dict[str, Tensor]:
        """One row: `ids` and `labels` (T,) int64, -100 at the prompt."""
        index = self.indices[key[1] if isinstance(key, tuple) else key]
        start, prompt, length = self.tokens.items[index, :FILE].tolist()
        ids = torch.from_numpy(self.tokens.ids[start : start + min(length, self.max_length)].astype(np.int64))
        labels = ids.clone()
        labels[:prompt] = IGNORED
        return {"ids": ids, "labels": labels}


def join_rows(rows: Sequence[dict[str, Tensor]], pad_id: int, streams: int = 1) -> dict[str, Tensor]:
    """Pad rows on the right and join them.

    Args:
        pad_id: fills `input_ids`.
        streams: agents with rows for each; the rows of the first agent come first, then those of the second.

    Returns:
        `input_ids`, `attention_mask` (1 for tokens) and `labels`, (B, T) int64, or (K, B, T) with several streams;
        `label_positions` (M,), or (K, M), computed here on the CPU, see `zoo.ci_llm.losses.likelihood`.
    """
    shape = (len(rows), max(len(row["ids"]) for row in rows))
    batch = {
        "input_ids": torch.full(shape, pad_id),
        "attention_mask": torch.zeros(shape, dtype=torch.int64),
        "labels": torch.full(shape, IGNORED),
    }
    for number, row in enumerate(rows):
        length = len(row["ids"])
        batch["input_ids"][number, :length] = row["ids"]
        batch["attention_mask"][number, :length] = 1
        batch["labels"][number, :length] = row["labels"]
    if streams > 1:
        batch = {name: value.reshape(streams, -1, shape[1]) for name, value in batch.items()}
    return {**batch, "label_positions": label_positions(batch["labels"])}


def pad_left(prompts: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Prompts as rows that end together: ids and mask (B, T) int64."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad_id] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    return ids, (torch.arange(longest) >= longest - lengths[:, None]).long()
