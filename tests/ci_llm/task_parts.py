"""Tasks and trainers for the tests of training."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader

from tests.ci_llm import crowd_parts
from tests.training.callbacks.parts import make_trainer
from zoo.ci_llm import ByteTokenizer, CrowdTask, LearningBackbone, PretrainTask, Tokenizer

SGD = partial(torch.optim.SGD, lr=0.1)
COUNTS = (5, 2, 1, 4)  # labelled tokens of the texts
BYTES = {**crowd_parts.CONFIGS["llama"], "vocab_size": 259}


class Forty(Tokenizer):
    """A tokenizer that fits the small backbones, of 40 tokens."""

    is_frozen = False

    def check_vocabulary(self, size: int) -> None:
        assert size == 40


def texts(count: int = 4, length: int = 8, seed: int = 0) -> dict[str, torch.Tensor]:
    """A batch whose texts have different numbers of labels and of padding."""
    ids = torch.randint(3, 40, (count, length), generator=torch.Generator().manual_seed(seed))
    index = torch.arange(length)
    ends = torch.tensor([length - i % 3 for i in range(count)])[:, None]
    first = ends - torch.tensor([COUNTS[(i + seed) % 4] for i in range(count)])[:, None]
    mask = (index < ends).long()
    labels = torch.where((index >= first) & (index < ends), ids, -100)
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


def rows(batch: dict[str, torch.Tensor], *numbers: int) -> dict[str, torch.Tensor]:
    return {key: value[list(numbers)] for key, value in batch.items()}


def task(crowd: Any = None, **arguments: Any) -> CrowdTask:
    """A task with plain gradient descent."""
    settings = {"optimizer": SGD, "tokenizer": Forty(), **arguments}
    return CrowdTask(crowd if crowd is not None else crowd_parts.crowd(), **settings)


def byte_task(count: int = 2, **arguments: Any) -> CrowdTask:
    return task(
        crowd_parts.byte_crowd(count),
        tokenizer=ByteTokenizer(),
        **{"template": "{prompt}", "max_new_tokens": 8, **arguments},
    )


def pretrain_task(tied: bool = False, **arguments: Any) -> PretrainTask:
    backbone = LearningBackbone({**BYTES, "max_position_embeddings": 64, "tie_word_embeddings": tied})
    settings = {"optimizer": partial(torch.optim.SGD, lr=0.5), "tokenizer": ByteTokenizer(), "template": "{prompt}"}
    return PretrainTask(backbone, **{**settings, "max_new_tokens": 8, **arguments})


def trainer(folder: Path, callbacks: Sequence[L.Callback] = (), **settings: Any) -> L.Trainer:
    return make_trainer(*callbacks, default_root_dir=folder, **settings)


def loader(batches: list[dict[str, torch.Tensor]]) -> DataLoader:
    return DataLoader(batches, batch_size=None)


def weights(module: L.LightningModule) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in module.crowd.agents.named_parameters()}
