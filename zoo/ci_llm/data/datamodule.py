"""Batches of prompts with answers for a crowd of agents."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from zoo.ci_llm.data.arithmetic import SPLITS, Arithmetic, Split
from zoo.ci_llm.data.buckets import AgentData, TextBatches, pack
from zoo.ci_llm.data.text_data import Example, Template, read_examples, split_files
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import TextRows, Tokens, TooLong, join_rows, tokenise, tokenise_files
from zoo.common.checks import check_at_least
from zoo.training.datamodule import ZooDataModule
from zoo.training.resume import EvaluationSampler, ResumableBatchSampler, item_seed

log = logging.getLogger(__name__)

CACHES = "runs/cache"
EMBEDDED = "embedded arithmetic"
HELD, PACKED = -5, -6  # of the seeds of what is held out and of the packing


class TextData(ZooDataModule):
    """Prompts with answers, such as GSM8K: JSON lines, Parquet or Arrow, or arithmetic made in code.

    Prompt and answer are tokenised apart; EOS follows the answer; answer and EOS alone are learnt. A batch is what
    `join_rows` gives. Training batches hold texts of similar length, validation and test are sorted by length.

    Args:
        tokenizer: text to numbers; the model's.
        root: a file of training texts, or a folder with `train.jsonl` (.parquet, .arrow) and, if there are any, `test`
            and `val`; null for the embedded corpus.
        prompt_field: where a record holds the prompt.
        answer_field: where it holds the answer.
        template: what the model is given, with `{prompt}`.
        answer_template: what it is to write, with `{answer}`.
        max_length: most tokens of a text.
        too_long: "truncate" cuts the end of a longer answer, "drop" leaves the text out.
        batch_size: texts per batch, agent and process.
        token_budget: instead, most tokens of a batch with its padding, of one process and all agents together.
        packing: put several texts into each row of `max_length` tokens in training; for `agent_data: shared` alone.
        agents: number of agents K.
        agent_data: "shared": all agents see the same batch; "shuffled": each its own order; "bootstrap": each its own
            sample of the texts besides, drawn with replacement.
        least_rows: fewest rows of a batch per agent; a variance over the batch needs 2.
        max_items: first so many training texts; null for all.
        val_items: training texts that are held out for validation where there is no `val` file.
        corpus: the embedded one; by default additions and subtractions up to 20.
        cache: folder of tokenised files, made on first use; null to tokenise in memory.
        embedded_if_missing: use the embedded corpus, with a message, when `root` does not exist.
        seed: of order, samples, packing and what is held out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        root: str | None = None,
        prompt_field: str = "question",
        answer_field: str = "answer",
        template: str = "Question: {prompt}\nAnswer:",
        answer_template: str = " {answer}",
        max_length: int = 512,
        too_long: TooLong = "truncate",
        batch_size: int = 8,
        token_budget: int | None = None,
        packing: bool = False,
        agents: int = 1,
        agent_data: AgentData = "shared",
        least_rows: int = 1,
        max_items: int | None = None,
        val_items: int = 64,
        corpus: Arithmetic | None = None,
        cache: str | None = CACHES,
        embedded_if_missing: bool = False,
        drop_last: bool = True,
        num_workers: int = 0,
        seed: int = 42,
    ) -> None:
        super().__init__(batch_size, num_workers, seed, drop_last)
        check_at_least(1, batch_size=batch_size, agents=agents, least_rows=least_rows, val_items=val_items)
        check_at_least(1, max_items=1 if max_items is None else max_items)
        check_at_least(2, max_length=max_length)
        if token_budget is None and batch_size < least_rows:
            raise ValueError(f"data.init_args: batch_size ({batch_size}) is below least_rows ({least_rows})")
        if packing and agent_data != "shared":
            raise ValueError(
                f"data.init_args: packing puts several texts into a row, so agent_data ({agent_data}) cannot order or "
                "draw single texts: set packing to false, or agent_data to shared"
            )
        self.tokenizer = tokenizer
        self.root = None if root is None else Path(root)
        self.fields = (prompt_field, answer_field)
        self.template = Template(template, answer_template)
        self.max_length = max_length
        self.too_long: TooLong = too_long
        self.token_budget = token_budget
        self.packing = packing
        self.agents = agents
        self.agent_data: AgentData = agent_data
        self.least_rows = least_rows
        self.max_items = max_items
        self.val_items = val_items
        self.corpus = corpus or Arithmetic()
        self.cache = None if cache is None else Path(cache)
        if self.root is not None and not self.root.exists():
            if not embedded_if_missing:
                raise FileNotFoundError(
                    f"data.init_args.root: nothing at {root}; put train.jsonl and test.jsonl there, set ZOO_DATA, or "
                    "use root: null for arithmetic made in code"
                )
            log.warning("no texts at %s: using arithmetic made in code (set ZOO_DATA)", root)
            self.root = None

    def prepare_data(self) -> None:
        """Write the caches, once per machine."""
        if self.root is not None and self.cache is not None:
            for split in SPLITS:
                self._tokens(split)

    def setup(self, stage: str) -> None:
        """Open or tokenise the texts, divide them, pack them."""
        train, val, test = (self._tokens(split) for split in SPLITS)
        assert train is not None
        kept = train.fitting(self.max_length, self.too_long)
        if val is None:
            kept, held = self._hold_out(kept)
        self.val_set = self._sorted(train, held) if val is None else self._sorted(val)
        self.test_set = None if test is None else self._sorted(test)
        kept = kept[: self.max_items]
        lengths = train.lengths(self.max_length)
        rows: Sequence[Sequence[int]] = kept[:, None].tolist()
        if self.packing:
            packs = pack(lengths[kept], self.max_length, item_seed(self.seed, 0, PACKED))
            rows = [kept[chosen].tolist() for chosen in packs]
        self.train_set = TextRows(train, rows, self.max_length)
        self.lengths = np.array([lengths[list(row)].sum() for row in rows])
        self.file_facts = (train.items[kept],)
        log.info(
            "%s: %d texts (%d tokens) in %d rows for training, %d for validation, %s for the test",
            self.root or EMBEDDED, len(kept), self.lengths.sum(), len(rows), len(self.val_set),
            "none" if self.test_set is None else len(self.test_set),
        )  # fmt: skip

    def examples(self, split: Split) -> list[Example]:
        """Prompts and answers of a split as text, for generation; `val` has all files for validation."""
        if self.root is None:
            problems = self.corpus.problems(split)
            return [Example(*problem, f"{EMBEDDED} ({split})", line) for line, problem in enumerate(problems, 1)]
        files = split_files(self.root, split)
        if not files:
            raise ValueError(f"{self.root} has no files of the split {split}; put {split}.jsonl there")
        return read_examples(files, *self.fields)

    def train_batches(self, rank: int, world: int) -> ResumableBatchSampler:
        """The training set's batches for a process: of similar length, by `BucketBatchSampler` or `TextBatches`."""
        if self.token_budget is None and (self.agent_data == "shared" or self.agents == 1):
            return super().train_batches(rank, world)
        assert self.lengths is not None
        return TextBatches(
            self.lengths, None if self.token_budget else self.batch_size, self.token_budget, self.agents,
            self.agent_data, self.seed, rank, world, self.drop_last, self.least_rows,
        )  # fmt: skip

    def evaluation_loader(self, dataset: Dataset[Any]) -> DataLoader[Any]:
        """This rank's slice of an evaluation set, sorted by length, the longest first; agents share its batches."""
        rank, world = self._rank_and_world()
        part = EvaluationSampler(len(dataset), rank, world)  # type: ignore[arg-type]
        size = self.batch_size
        if self.token_budget is not None:
            size = max(1, self.token_budget // (self.max_length * self.agents))
        return self.loader(dataset, batch_size=size, sampler=part, collate_fn=self.collate_shared)

    def collate(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Join training rows."""
        streams = 1 if self.agent_data == "shared" else self.agents
        return join_rows(items, self.tokenizer.pad_id, self.packing, streams)

    def collate_shared(self, items: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        """Join rows of an evaluation: never packed, the same for all agents."""
        return join_rows(items, self.tokenizer.pad_id)

    def _tokens(self, split: Split) -> Tokens | None:
        """Tokens of a split; None where the files have none."""
        if self.root is None:
            return tokenise(self.examples(split), self.tokenizer, self.template)
        files = split_files(self.root, split)
        return tokenise_files(files, self.fields, self.tokenizer, self.template, self.cache) if files else None

    def _hold_out(self, kept: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.val_items >= len(kept):
            raise ValueError(
                f"{self.root} has {len(kept)} training texts, of which data.init_args.val_items ({self.val_items}) are "
                "held out: lower it, or add a val file"
            )
        generator = torch.Generator().manual_seed(item_seed(self.seed, 0, HELD))
        held = np.sort(torch.randperm(len(kept), generator=generator)[: self.val_items].numpy())
        return np.delete(kept, held), kept[held]

    def _sorted(self, tokens: Tokens, chosen: np.ndarray | None = None) -> TextRows:
        """Rows of single texts, the longest first."""
        chosen = tokens.fitting(self.max_length, self.too_long) if chosen is None else chosen
        order = np.argsort(-tokens.lengths(self.max_length)[chosen], kind="stable")
        return TextRows(tokens, chosen[order][:, None].tolist(), self.max_length)
