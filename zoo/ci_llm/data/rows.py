"""Rows of numbers for a batch: one or several texts each, padded and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zoo.ci_llm.data.tokens import Tokens
from zoo.ci_llm.losses.likelihood import IGNORED, label_positions
from zoo.training.data import Key


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
        packed also `position_ids`, from 0 in each example, and `segment_ids`, the number of the example in its row
        from 1, 0 for padding: a token attends to those of its own number. `label_positions` (M,), or (K, M), are found
        here, where looking costs no wait for a device, see `zoo.ci_llm.losses.likelihood.label_positions`.
    """
    shape = (len(rows), max(len(row["ids"]) for row in rows))
    batch = {
        "input_ids": torch.full(shape, pad_id),
        "attention_mask": torch.zeros(shape, dtype=torch.int64),
        "labels": torch.full(shape, IGNORED),
    }
    if packed:
        batch |= {name: torch.zeros(shape, dtype=torch.int64) for name in ("position_ids", "segment_ids")}
    for number, row in enumerate(rows):
        length = len(row["ids"])
        batch["input_ids"][number, :length] = row["ids"]
        batch["attention_mask"][number, :length] = 1
        batch["labels"][number, :length] = row["labels"]
        if packed:
            batch["position_ids"][number, :length] = torch.cat([torch.arange(each) for each in row["lengths"]])
            segments = torch.arange(1, len(row["lengths"]) + 1)
            batch["segment_ids"][number, :length] = segments.repeat_interleave(torch.tensor(row["lengths"]))
    if streams > 1:
        batch = {name: value.reshape(streams, -1, shape[1]) for name, value in batch.items()}
    return {**batch, "label_positions": label_positions(batch["labels"])}
