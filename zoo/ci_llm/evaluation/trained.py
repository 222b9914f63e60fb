"""A run of CI-LLM for evaluation: crowd, tokenizer, text format, and its questions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zoo.ci_llm.aggregation import Aggregator
from zoo.ci_llm.data.arithmetic import Split
from zoo.ci_llm.data.datamodule import TextData
from zoo.ci_llm.data.text_files import Example, TextFormat, read_examples, split_files
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.inference.text_generator import TextGenerator
from zoo.ci_llm.nets.crowd import Crowd
from zoo.common.build import build
from zoo.common.configs import load_run_config
from zoo.common.registry import constructor_annotations, public_name
from zoo.runs.load import load
from zoo.runs.run_folder import find_config, has_config_file

TEXT_DATA = public_name(TextData)


@dataclass(frozen=True)
class TrainedCrowd:
    """A crowd to evaluate."""

    crowd: Crowd
    tokenizer: Tokenizer
    text_format: TextFormat
    name: str = "crowd"
    aggregator: Aggregator | None = None  # of the run


def load_crowd(run: Path, device: str | torch.device = "cpu") -> tuple[TrainedCrowd, TextData, int]:
    """Load a run folder, checkpoint or export to evaluate it.

    Returns:
        The crowd, its training data (synthetic arithmetic where the run does not name them), and its limit of new
        tokens.
    """
    generator = load(run, device)
    if not isinstance(generator, TextGenerator):
        raise ValueError(f"{run} is loaded as {type(generator).__name__}; expected a TextGenerator of ci_llm")
    crowd, tokenizer = generator.crowd, generator.tokenizer
    if not all(bool(weight.isfinite().all()) for weight in crowd.agents.parameters()):
        raise ValueError(f"{run}: its weights are not finite: the training diverged; use an earlier checkpoint")
    text_format, arguments = generator.text_format, data_arguments(Path(run))
    if arguments is not None:
        text_format = TextFormat(**arguments.pop("text_format", {}))
        arguments.pop("tokenizer", None)
    annotations = constructor_annotations(TextData)
    options = {key: build(value, annotations.get(key, Any)) for key, value in (arguments or {}).items()}
    data = TextData(tokenizer, text_format=text_format, **options)
    trained = TrainedCrowd(crowd, tokenizer, data.text_format, str(run), generator.aggregator)
    return trained, data, generator.max_new_tokens


def data_arguments(run: Path) -> dict[str, Any] | None:
    """Read the arguments of a run's TextData; None where it has no config, or data of another class."""
    data = load_run_config(find_config(run), from_run=True).get("data") or {} if has_config_file(run) else None
    if data is None or data.get("class_path", TEXT_DATA) != TEXT_DATA:
        return None
    return dict(data.get("init_args") or {})


def read_questions(path: Path, split: Split, fields: tuple[str, str]) -> list[Example]:
    """Questions and answers, by the names of their fields, of a file, or of a folder's split."""
    files = [path] if path.is_file() else split_files(path, split)
    if not files:
        raise FileNotFoundError(f"{path} has no files of the split {split}; put {split}.jsonl there or name a file")
    return read_examples(files, *fields)
