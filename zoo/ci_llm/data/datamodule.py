"""Batches of prompts with answers for a crowd of agents."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Trainer
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zoo.ci_llm.data.arithmetic import SPLITS, Arithmetic, Split
from zoo.ci_llm.data.buckets import AgentData, TextBatches
from zoo.ci_llm.data.text_files import Example, TextFormat, read_examples, split_files, text_fields
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import FILE, LENGTH, LINE, PROMPT, TextRows, TokenTable, join_rows, tokenise, tokenise_files
from zoo.common.checks import check_at_least
from zoo.training.datamodule import ZooDataModule
from zoo.training.resume import ResumableBatchSampler, item_seed

log = logging.getLogger(__name__)

CACHES = "runs/cache"
EMBEDDED = "embedded arithmetic"
HOLD_OUT = -5  # of the seeds
DEFAULT_FORMAT = TextFormat()
UNLIMITED = 2**30  # context of a backbone without limit
ANSWER = 64  # tokens of an answer, in a proposal
USUAL_ANSWERS = ("answer", "completion", "output", "response", "solution", "target")  # names of fields


def check_texts(trainer: Trainer, tokenizer: Tokenizer, template: str) -> None:
    """Refuse training texts of another tokenizer or template than the model answers by, with a ValueError."""
    data = getattr(trainer, "datamodule", None)
    if not isinstance(data, TextData):
        return
    if data.text_format.template != template:
        raise ValueError(f"data.text_format.template is {data.text_format.template!r}, model.template {template!r}")
    if data.tokenizer.fingerprint() != tokenizer.fingerprint():
        raise ValueError(
            f"data.tokenizer, of {data.tokenizer.vocab_size} tokens, is not model.tokenizer, of "
            f"{tokenizer.vocab_size}, or was learnt from other texts: make them the same"
        )


class TextData(ZooDataModule):
    """Prompts with answers, such as GSM8K: JSON lines, Parquet or Arrow, or synthetic arithmetic.

    Prompt and answer are tokenised apart; EOS follows the answer; answer and EOS are the labels. A batch is that of
    `join_rows`. Training batches hold texts of similar length, validation and test are sorted by length.

    Args:
        tokenizer: the model's.
        root: a file of training texts, or a folder with `train.jsonl` (.parquet, .arrow) and, if there are any, `test`
            and `val`; null for the embedded corpus.
        text_format: fields, templates, and how texts that are too long are shortened.
        max_length: most tokens of a text.
        batch_size: texts per batch, agent and process.
        token_budget: instead, most tokens of a batch with its padding, of one process and all agents together.
        agents: number of agents K.
        agent_data: "shared": all agents see the same batch; "shuffled": one order for each.
        max_items: first so many training texts; null for all.
        val_items: training texts that are held out for validation where there is no `val` file, with their copies.
        corpus: the embedded one; by default additions and subtractions up to 20.
        cache: folder of tokenised files, created at the first use; null to tokenise in memory.
        seed: of order and hold-out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        root: str | None = None,
        text_format: TextFormat = DEFAULT_FORMAT,
        max_length: int = 512,
        batch_size: int = 8,
        token_budget: int | None = None,
        agents: int = 1,
        agent_data: AgentData = "shared",
        max_items: int | None = None,
        val_items: int = 64,
        corpus: Arithmetic | None = None,
        cache: str | None = CACHES,
        drop_last: bool = True,
        num_workers: int = 0,
        seed: int = 42,
    ) -> None:
        super().__init__(batch_size, num_workers, seed, drop_last)
        check_at_least(1, batch_size=batch_size, agents=agents, val_items=val_items)
        check_at_least(1, max_items=1 if max_items is None else max_items)
        check_at_least(1, token_budget=1 if token_budget is None else token_budget)
        check_at_least(2, max_length=max_length)
        self.tokenizer = tokenizer
        self.root = None if root is None else Path(root)
        self.text_format = text_format
        self.max_length = max_length
        self.token_budget = token_budget
        self.agents = agents
        self.agent_data: AgentData = agent_data
        self.max_items = max_items
        self.val_items = val_items
        self.corpus = corpus or Arithmetic()
        self.cache = None if cache is None else Path(cache)

    def prepare_data(self) -> None:
        """Write the caches, once per machine."""
        if self.root is not None and self.cache is not None:
            for split in SPLITS:
                self._read_split(split, self._other_fields(split))

    def setup(self, stage: str) -> None:
        """Open or tokenise the texts and split them; ValueError names all settings that do not fit them."""
        fields = {split: self._other_fields(split) for split in SPLITS}
        train, val, test = (self._read_split(split, fields[split]) for split in SPLITS)
        assert train is not None
        tables = [each for each in (train, val, test) if each]
        if misfits := self._field_misfits(fields) + self._find_misfits(tables, val is not None):
            raise ValueError("; ".join(misfits))
        indices = train.select_fitting(self.max_length, self.text_format)
        if val is None:
            indices, val_indices = self._hold_out(train, indices)
            self.val_set = self._longest_first(train, val_indices)
        else:
            self.val_set = self._longest_first(val, val.select_fitting(self.max_length, self.text_format))
        self.test_set = None
        if test is not None:
            self.test_set = self._longest_first(test, test.select_fitting(self.max_length, self.text_format))
        indices = indices[: self.max_items]
        self.train_set = TextRows(train, indices, self.max_length)
        lengths = train.lengths(self.max_length)[indices]
        self.lengths = lengths
        self.file_facts = (train.items[indices],)
        log.info(
            "%s: %d texts (%d tokens) for training, %d for validation, %s for the test",
            self.root or EMBEDDED, len(indices), lengths.sum(), len(self.val_set),
            len(self.test_set) if self.test_set is not None else "none",
        )  # fmt: skip

    def examples(self, split: Split) -> list[Example]:
        """Prompts and answers of a split as text; `val` has all files for validation."""
        if self.root is None:
            problems = self.corpus.problems(split)
            return [Example(*problem, f"{EMBEDDED} ({split})", line) for line, problem in enumerate(problems, 1)]
        files = split_files(self.root, split)
        if not files:
            raise ValueError(f"{self.root} has no files of the split {split}; put {split}.jsonl there")
        return read_examples(files, self.text_format.prompt_field, self.text_format.answer_field)

    def validation_examples(self) -> list[Example]:
        """The validation set as text, held-out training texts included."""
        if self.root is None or split_files(self.root, "val"):
            return self.examples("val")
        self.setup("validate")
        train = self.examples("train")
        return [train[index] for index in self.val_set.indices]  # type: ignore[attr-defined]

    def train_batches(self, rank: int, world: int) -> ResumableBatchSampler:
        """The training set's batches for a process: of similar length, by `BucketBatchSampler` or `TextBatches`."""
        if self.token_budget is None and (self.agent_data == "shared" or self.agents == 1):
            return super().train_batches(rank, world)
        assert self.lengths is not None
        batch_size = None if self.token_budget else self.batch_size
        return TextBatches(
            self.lengths, batch_size, self.token_budget, self.agents, self.agent_data, self.seed, rank, world,
            self.drop_last,
        )  # fmt: skip

    def evaluation_loader(self, dataset: Dataset[Any]) -> DataLoader[Any]:
        """This rank's slice of an evaluation set, sorted by length, the longest first; agents share its batches."""
        size = self.batch_size
        if self.token_budget is not None:
            size = max(1, self.token_budget // (self.max_length * self.agents))
        return self.loader(dataset, batch_size=size, sampler=self.rank_indices(dataset), collate_fn=self.collate_shared)

    def collate(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Join training rows."""
        return join_rows(items, self.tokenizer.pad_id, 1 if self.agent_data == "shared" else self.agents)

    def collate_shared(self, items: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Join rows of an evaluation, the same for all agents."""
        return join_rows(items, self.tokenizer.pad_id)

    def _read_split(self, split: Split, fields: Mapping[str, Any]) -> TokenTable | None:
        """Tokens of a split, read from other fields than the format's where given; None where it has no files."""
        if self.root is None:
            return tokenise(self.examples(split), self.tokenizer, self.text_format)
        files = split_files(self.root, split)
        if not files:
            return None
        return tokenise_files(files, self.tokenizer, replace(self.text_format, **fields), self.cache)

    def _other_fields(self, split: Split) -> dict[str, str]:
        """Fields that a split's first file has in the place of absent ones, by option; none where that is a guess."""
        files = [] if self.root is None else split_files(self.root, split)
        if not files:
            return {}
        names = {key: getattr(self.text_format, key) for key in ("prompt_field", "answer_field")}
        fields = text_fields(files[0])
        absent = [key for key, name in names.items() if name not in fields]
        unused = [name for name in fields if name not in names.values()]
        unused.sort(key=USUAL_ANSWERS.__contains__)
        is_clear = len(absent) < 2 or [name in USUAL_ANSWERS for name in unused] == [False, True]
        return dict(zip(absent, unused, strict=True)) if is_clear and len(unused) == len(absent) else {}

    def _field_misfits(self, fields: Mapping[Split, Mapping[str, str]]) -> list[str]:
        """List the splits whose fields have other names, with the options or the names that mend it."""
        misfits = []
        for split, others in fields.items():
            if self.root is not None and others:
                absent = " and ".join(repr(getattr(self.text_format, key)) for key in others)
                options = " ".join(f"--data.text_format.{key} {name}" for key, name in others.items())
                cure = options if others == fields["train"] else "name its fields like those of the training texts"
                misfits.append(f"{split_files(self.root, split)[0]} has no field {absent}: {cure}")
        return misfits

    def _find_misfits(self, tables: Sequence[TokenTable], has_val: bool) -> list[str]:
        """List the settings that do not fit the texts, training first, each with the options that mend it."""
        misfits = []
        context = getattr(getattr(self.trainer, "lightning_module", None), "context_tokens", None) or UNLIMITED
        if self.max_length > context:
            misfits.append(
                f"max_length is {self.max_length}, the backbone's context {context} tokens: --data.max_length {context}"
            )
        table = max(tables, key=lambda each: each.items[:, PROMPT].max())
        item = table.items[table.items[:, PROMPT].argmax()]
        longest, limit = int(item[PROMPT]), min(self.max_length, context)
        if self.text_format.too_long == "truncate" and longest >= limit:
            fits = longest + 1 < context
            option = f"max_length {min(longest + ANSWER, context)}" if fits else "text_format.too_long drop"
            misfits.append(
                f"{table.files[item[FILE]]}, line {item[LINE]}: its prompt of {longest} tokens leaves none for an "
                f"answer within {limit}: --data.{option}"
            )
        dropped = tables[0].items[:, LENGTH] > self.max_length if self.text_format.too_long == "drop" else 0
        count, held_out = len(tables[0]) - int(np.sum(dropped)), 0 if has_val else self.val_items
        if not count:  # `select_fitting` tells that all were dropped
            return misfits
        if held_out >= count:
            held_out = max(1, count // 10)
            misfits.append(f"{self.val_items} of {count} texts would be held out: --data.val_items {held_out}")
        left, batch = count - held_out, self.batch_size * self._rank_and_world()[1]
        if self.drop_last and self.token_budget is None and left < batch:
            size = max(1, left * self.batch_size // batch)
            misfits.append(f"{left} texts do not fill a batch of {batch}: --data.batch_size {size}")
        return misfits

    def _hold_out(self, tokens: TokenTable, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Indices for training and for validation; equal texts stay together, so the latter may be some more."""
        generator = torch.Generator().manual_seed(item_seed(self.seed, 0, HOLD_OUT))
        place = torch.randperm(len(indices), generator=generator).argsort().numpy()
        texts = np.unique([tokens.digest(index, self.max_length) for index in indices], return_inverse=True)[1]
        first = np.full(len(indices), len(indices))
        np.minimum.at(first, texts, place)
        held_out = first[texts] <= np.sort(first[texts])[self.val_items - 1]
        if held_out.all():
            raise ValueError(
                f"{self.root}: {self.val_items} held-out texts and their copies are all {len(indices)} texts: "
                "add others, or a file of validation texts"
            )
        return indices[~held_out], indices[held_out]

    def _longest_first(self, tokens: TokenTable, indices: np.ndarray) -> TextRows:
        order = np.argsort(-tokens.lengths(self.max_length)[indices], kind="stable")
        return TextRows(tokens, indices[order], self.max_length)
