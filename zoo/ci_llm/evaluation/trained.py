"""A run of CI-LLM as it is evaluated: crowd, tokenizer, template, and the questions that go with it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zoo.ci_llm.data.arithmetic import Split
from zoo.ci_llm.data.datamodule import TextData
from zoo.ci_llm.data.text_data import Example, Template, read_examples, split_files
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.inference.writer import Writer
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.build import build
from zoo.common.configs import load_run_config
from zoo.common.registry import constructor_annotations
from zoo.runs.load import load
from zoo.runs.run_folder import find_config, has_config_file


@dataclass(frozen=True)
class TrainedCrowd:
    """What is evaluated."""

    crowd: Crowd
    tokenizer: Tokenizer
    template: Template
    name: str = "crowd"


def load_crowd(run: Path, device: str | torch.device = "cpu") -> tuple[TrainedCrowd, TextData, int]:
    """Load a run folder, checkpoint or export to evaluate it.

    Returns:
        The crowd, the data that it was trained on (arithmetic made in code where the run does not tell), and its
        limit of new tokens.
    """
    writer = load(run, device)
    if not isinstance(writer, Writer):
        raise ValueError(f"{run} is loaded as {type(writer).__name__}; expected a crowd of ci_llm (Writer)")
    crowd, tokenizer = writer.crowd, writer.tokenizer
    if not all(bool(weight.isfinite().all()) for weight in crowd.agents.parameters()):
        raise ValueError(f"{run}: its weights are not finite: the training diverged; use an earlier checkpoint")
    config: dict[str, Any] = {}
    if has_config_file(Path(run)):
        config = load_run_config(find_config(Path(run)), from_run=True)
    described = dict((config.get("data") or {}).get("init_args") or {})
    described.pop("tokenizer", None)
    kinds = constructor_annotations(TextData)
    data = TextData(tokenizer=tokenizer, **{key: build(value, kinds.get(key, Any)) for key, value in described.items()})
    template = data.template if config else writer.template
    return TrainedCrowd(crowd, tokenizer, template, str(run)), data, writer.max_new_tokens


def validation_examples(data: TextData) -> list[Example]:
    """The validation set of a run as text, held-out training texts included."""
    if data.root is None or split_files(data.root, "val"):
        return data.examples("val")
    data.setup("validate")
    train = data.examples("train")
    return [train[number] for row in data.val_set.rows for number in row]  # type: ignore[attr-defined]


def read_questions(path: Path, split: Split, fields: tuple[str, str]) -> list[Example]:
    """Questions and answers, by the names of their fields, of a file, or of a folder's split."""
    files = [path] if path.is_file() else split_files(path, split)
    if not files:
        raise FileNotFoundError(f"{path} has no files of the split {split}; put {split}.jsonl there or name a file")
    return read_examples(files, *fields)
