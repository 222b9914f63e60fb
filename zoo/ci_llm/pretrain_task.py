"""Training of a small language model from random weights, where no published one serves as backbone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.ci_llm.data.datamodule import check_texts
from zoo.ci_llm.data.text_files import TextFormat
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import pad_left
from zoo.ci_llm.losses.likelihood import IGNORED, losses, target_losses
from zoo.ci_llm.losses.objective import Batch, label_targets
from zoo.ci_llm.nets.backbone import Backbone, LearningBackbone, positions
from zoo.ci_llm.validation_texts import write_answers
from zoo.common.atomic_files import replace_atomically
from zoo.runs.run_folder import run_folder
from zoo.training.optimizers import LrScaling
from zoo.training.strategies.sharding import gather_weights
from zoo.training.task import OptimizerCallable, SchedulerCallable, SingleOptimizerTask

FOLDER = "backbone"


class PretrainTask(SingleOptimizerTask):
    """Trains all weights of a language model. After each validation it is saved to `<run>/backbone`, for `source`.

    `val/loss` is the NLL of the answers, in nats per token, `val/accuracy` that of their likeliest tokens.

    Args:
        backbone: the model, all of whose weights train.
        tokenizer: of the texts; saved with the weights.
        scheduler: of the learning rate, counted in optimizer steps.
        whole_text: learn prompts too, not answers alone.
        template: of the model's input, with `{prompt}`; that of the data.
        prompt_field: of a line of a file of prompts, holds the prompt; that of the data.
        max_new_tokens: most tokens of an answer.
    """

    inference_class = "zoo.ci_llm.LanguageModel"
    usage_command = "zoo predict --ckpt_path {run} --input PROMPTS.jsonl --output FOLDER"
    inference_modules = ("backbone", "tokenizer")
    template: str
    max_new_tokens: int

    def __init__(
        self,
        backbone: LearningBackbone,
        tokenizer: Tokenizer,
        optimizer: OptimizerCallable,
        scheduler: SchedulerCallable | None = None,
        whole_text: bool = True,
        template: str = TextFormat.template,
        prompt_field: str = TextFormat.prompt_field,
        max_new_tokens: int = 128,
        lr_scaling: LrScaling | None = None,
    ) -> None:
        super().__init__(optimizer, scheduler, lr_scaling=lr_scaling)
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.whole_text = whole_text
        self.store_options(locals())

    def setup(self, stage: str) -> None:
        """Check that the model has the tokenizer's tokens, and the data its tokenizer and template."""
        super().setup(stage)
        self.tokenizer.check_vocabulary(self.backbone.vocab_size)
        if stage == "fit":
            check_texts(self.trainer, self.tokenizer, self.template)

    @property
    def context_tokens(self) -> int | None:
        """Longest text of the model in tokens, where its configuration knows it."""
        return self.backbone.context_tokens

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss on a batch of `input_ids`, `attention_mask` and `labels` (B, T)."""
        if self.whole_text:
            labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
            loss = losses(self._logits(batch)[None], labels)[0]
        else:
            at, targets = label_targets(batch)
            loss = target_losses(self._logits(batch, at), targets).sum() / max(1, len(targets))
        self.log_terms("train", {"loss": loss}, batch_size=len(batch["labels"]))
        return loss

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Score the answers of a batch."""
        at, targets = label_targets(batch)
        if not len(targets):
            return {}, 0
        logits = self._logits(batch, at)[0].float()
        nll = torch.nn.functional.cross_entropy(logits, targets)
        return {"loss": nll, "accuracy": (logits.argmax(-1) == targets).float().mean()}, len(targets)

    def on_validation_epoch_end(self) -> None:
        """Save model and tokenizer in transformers' layout, as they were validated: averaged where the run has EMA."""
        super().on_validation_epoch_end()
        if self.trainer.state.fn != "fit" or self.trainer.sanity_checking:
            return
        with gather_weights(self.trainer):
            if self.trainer.is_global_zero:
                save_backbone(self.backbone, self.tokenizer, run_folder(self.trainer) / FOLDER)

    def log_samples(self, batches: list[Any], last: bool) -> None:
        """Write a table of the model's continuations of the first prompts, by the likeliest tokens."""

        def answer(prompts: list[list[int]], limit: int) -> list[list[str]]:
            ids, mask = (each.to(self.device) for each in pad_left(prompts, self.tokenizer.pad_id))
            texts = self.backbone.model.generate(
                input_ids=ids, attention_mask=mask, do_sample=False, eos_token_id=self.tokenizer.eos_id,
                pad_token_id=self.tokenizer.pad_id, max_new_tokens=limit,
            )  # fmt: skip
            return [[self.tokenizer.decode(row)] for row in texts[:, ids.shape[1] :].tolist()]

        heads = ["prompt", "continuation", "right answer"]
        write_answers(self, batches, "val/continuations", heads, answer)

    def _logits(self, batch: Batch, at: Tensor | None = None) -> Tensor:
        """Logits (B, T, V), or (1, M, V) at M positions."""
        mask = batch["attention_mask"]
        return self.backbone(
            at, input_ids=batch["input_ids"], attention_mask=mask, position_ids=positions(mask), use_cache=False
        ).logits


def save_backbone(backbone: Backbone, tokenizer: Tokenizer, folder: Path) -> None:
    """Save a language model and its tokenizer in transformers' layout; the folder appears only when it is complete."""
    with replace_atomically(folder) as temporary:
        temporary.mkdir()
        backbone.save_source(temporary)
        tokenizer.save_source(temporary)
