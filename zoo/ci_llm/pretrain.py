"""A small language model trained from nothing, where no published one can be had as backbone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.ci_llm.data.questions import in_one_line, questions, room
from zoo.ci_llm.data.text_data import Template
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.data.tokens import left_padded
from zoo.ci_llm.losses.likelihood import IGNORED, losses, target_losses
from zoo.ci_llm.losses.objective import Batch, attended, targets
from zoo.ci_llm.nets.backbone import Backbone, LearningBackbone, positions
from zoo.common.atomic_files import replace_atomically
from zoo.runs.run_folder import run_folder
from zoo.training.schedules import LrScaling
from zoo.training.strategies.sharding import gather_weights
from zoo.training.task import OptimizerCallable, SchedulerCallable, SingleOptimizerTask

FOLDER = "backbone"


class PretrainTask(SingleOptimizerTask):
    """Trains a whole language model. After each validation it is written to `<run>/backbone`, ready as a `source`.

    `val/loss` is the NLL of the answers, in nats per token, `val/accuracy` that of their likeliest tokens.

    Args:
        backbone: the model, all of whose weights train.
        tokenizer: of the texts; written beside the weights.
        scheduler: of the learning rate, counted in optimizer steps.
        whole_text: learn prompts too, not answers alone.
        template: what turns a prompt into the text that the model continues, with `{prompt}`; that of the data.
        max_new_tokens: most tokens of an answer.
    """

    inference_class = "zoo.ci_llm.Speaker"
    usage_command = "zoo predict --ckpt_path {run} --input PROMPTS.jsonl --output FOLDER"
    inference_modules = ("backbone", "tokenizer")

    def __init__(
        self,
        backbone: LearningBackbone,
        tokenizer: Tokenizer,
        optimizer: OptimizerCallable,
        scheduler: SchedulerCallable | None = None,
        whole_text: bool = True,
        template: str = Template.prompt,
        max_new_tokens: int = 128,
        lr_scaling: LrScaling | None = None,
    ) -> None:
        super().__init__(optimizer, scheduler, lr_scaling=lr_scaling)
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.whole_text = whole_text
        self.template = template
        self.max_new_tokens = max_new_tokens

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss on a batch of `input_ids`, `attention_mask` and `labels` (B, T); packed also `segment_ids`."""
        if self.whole_text:
            labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
            loss = losses(self._logits(batch)[None], labels)[0]
        else:
            at, wanted = targets(batch)
            loss = target_losses(self._logits(batch, at), wanted).sum() / max(1, len(wanted))
        self.log_terms("train", {"loss": loss}, batch_size=len(batch["labels"]))
        return loss

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Score the answers of a batch."""
        at, wanted = targets(batch)
        if not len(wanted):
            return {}, 0
        logits = self._logits(batch, at)[0].float()
        nll = torch.nn.functional.cross_entropy(logits, wanted)
        return {"loss": nll, "accuracy": (logits.argmax(-1) == wanted).float().mean()}, len(wanted)

    def on_validation_end(self) -> None:
        """Write model and tokenizer in transformers' layout."""
        if self.trainer.state.fn != "fit" or self.trainer.sanity_checking:
            return
        with gather_weights(self.trainer):
            if self.trainer.is_global_zero:
                save_backbone(self.backbone, self.tokenizer, run_folder(self.trainer) / FOLDER)

    def log_samples(self, batches: list[Any], last: bool) -> None:
        """Show how the model continues the first prompts, by the likeliest tokens."""
        if not self.can_sample_on_rank_zero:
            return
        asked = questions(batches, self.sample_settings.items, self.tokenizer, self.template)
        if not asked:
            return
        ids, mask = (x.to(self.device) for x in left_padded([each.prompt for each in asked], self.tokenizer.pad_id))
        written = self.backbone.model.generate(
            input_ids=ids, attention_mask=mask, do_sample=False, eos_token_id=self.tokenizer.eos_id,
            pad_token_id=self.tokenizer.pad_id,
            max_new_tokens=room(asked, self.backbone.context_tokens, self.max_new_tokens),
        )[:, ids.shape[1] :]  # fmt: skip
        rows = [
            [in_one_line(text) for text in (each.text, self.tokenizer.decode(row), each.answer)]
            for each, row in zip(asked, written.tolist(), strict=True)
        ]
        self.write_media("table", "val/continuations", ["prompt", "continuation", "right answer"], rows)

    def _logits(self, batch: Batch, at: Tensor | None = None) -> Tensor:
        """Logits (B, T, V), or (1, M, V) at M positions."""
        mask, request = attended(batch)
        position_ids = request.get("position_ids", positions(batch["attention_mask"]))
        return self.backbone(
            at, input_ids=batch["input_ids"], attention_mask=mask, position_ids=position_ids, use_cache=False
        ).logits


def save_backbone(backbone: Backbone, tokenizer: Tokenizer, folder: Path) -> None:
    """Write a language model and its tokenizer in transformers' layout; the folder appears only when it is whole."""
    with replace_atomically(folder) as aside:
        aside.mkdir()
        backbone.save_source(aside)
        tokenizer.save(aside)
