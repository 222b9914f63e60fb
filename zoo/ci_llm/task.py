"""Training of a crowd: next-token loss of every agent, less what their diversity is worth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from zoo.ci_llm.aggregation.aggregator import Aggregator, Vote, aggregate
from zoo.ci_llm.aggregation.answers import flexible_answer, vote
from zoo.ci_llm.data.datamodule import TextData
from zoo.ci_llm.data.questions import in_one_line, questions, room
from zoo.ci_llm.data.text_data import Template
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.losses.diversity import Diversity
from zoo.ci_llm.losses.likelihood import label_positions
from zoo.ci_llm.losses.metrics import token_scores
from zoo.ci_llm.losses.objective import Batch, Objective, label_count, mean_over_ranks, targets
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling
from zoo.common.checks import check_one_of
from zoo.training.schedules import LrScaling
from zoo.training.task import OptimizerCallable, SchedulerCallable, SingleOptimizerTask, WeightedMeans

BLOCK_VALUES = 2**26  # of predictions that are scored at once


class CrowdTask(SingleOptimizerTask):
    """Trains all agents of a crowd together: mean of their losses, less weight times diversity.

    `val/loss` and `test/loss` are the mean NLL of the agents, in nats per labelled token; beside it `nll_agent_<k>`,
    `nll_best` (of the agent with the least), `nll_ensemble` (of the mean of the predictions), `ambiguity` (loss minus
    nll_ensemble), `pairwise_kl`, `disagreement` of the likeliest tokens and `accuracy` of the ensemble's.

    Args:
        crowd: the frozen backbone and the agents, which train.
        tokenizer: of the texts; part of inference.
        diversity: the term that drives agents apart; null for none.
        scheduler: of the learning rate, counted in optimizer steps.
        normalise: "global" divides by the labelled tokens of the whole optimizer step, of all processes, accumulated
            batches and agents, so that they equal one larger batch; diversity counts in proportion to the tokens of its
            batch. "batch" is the mean over each batch and agent, then over batches.
        loss_shift: let a position predict the next token. False compares it with its own token, as the original
            does by mistake, for comparisons with it.
        template: what turns a prompt into the text that the model continues, with `{prompt}`; that of the data.
        aggregator: joins the agents when they write; their mean by default.
        max_new_tokens: most tokens of an answer.
        sampling: how tokens are chosen; the likeliest by default.
        prompt_batch: prompts that are answered together.
        answer_seed: of answers that are drawn.

    Source: specification of CI-LLM, section 2.
    """

    inference_class = "zoo.ci_llm.Writer"
    usage_command = "zoo predict --ckpt_path {run} --input PROMPTS.jsonl --output FOLDER"
    inference_modules = ("crowd", "tokenizer")

    def __init__(
        self,
        crowd: Crowd,
        tokenizer: Tokenizer,
        optimizer: OptimizerCallable,
        diversity: Diversity | None = None,
        scheduler: SchedulerCallable | None = None,
        normalise: Literal["batch", "global"] = "global",
        loss_shift: bool = True,
        template: str = Template.prompt,
        aggregator: Aggregator | None = None,
        max_new_tokens: int = 128,
        sampling: Sampling | None = None,
        prompt_batch: int = 8,
        answer_seed: int = 0,
        lr_scaling: LrScaling | None = None,
    ) -> None:
        super().__init__(optimizer, scheduler, lr_scaling=lr_scaling)
        check_one_of(("batch", "global"), normalise=normalise)
        self.crowd = crowd
        self.tokenizer = tokenizer
        self.diversity = diversity
        self.normalise = normalise
        self.loss_shift = loss_shift
        self.template = template
        self.aggregator = aggregator
        self.max_new_tokens = max_new_tokens
        self.sampling = sampling
        self.prompt_batch = prompt_batch
        self.answer_seed = answer_seed
        self._means = _CrowdMeans()
        self._counts: list[Tensor] = []  # labelled tokens of the batches of the step under way, means over ranks

    def setup(self, stage: str) -> None:
        """See that tokenizer, backbone, diversity and data belong together.

        Raises:
            ValueError: when the backbone does not know all tokens or has no room for the texts, or when diversity would
                compare packed rows.
        """
        super().setup(stage)
        known = self.crowd.backbone.vocab_size
        if self.tokenizer.vocab_size > known:
            raise ValueError(
                f"the tokenizer has {self.tokenizer.vocab_size} tokens, the backbone's vocabulary {known}: set "
                "model.init_args.tokenizer to the backbone's own"
            )
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, TextData):
            return
        context = self.crowd.backbone.context_tokens
        if context is not None and data.max_length > context:
            raise ValueError(
                f"data.init_args.max_length is {data.max_length}, the backbone's context {context} tokens: lower "
                f"max_length to at most {context}, or take a backbone with a longer context"
            )
        if data.packing and self.diversity is not None and self.diversity.enabled:
            raise ValueError(
                "data.init_args.packing puts several texts into a row, and model.init_args.diversity compares rows: "
                "set packing to false, or diversity.init_args.weight to 0"
            )

    def prepare_training_batch(self, batch: Batch) -> Batch:
        """Add `directions` of the diversity term and the positions of the losses, where it has none yet."""
        batch = self.prepare_evaluation_batch(batch)
        term = self.diversity
        if term is None or not term.enabled or "directions" in batch:
            return batch
        dims = self.crowd.backbone.dim if term.needs_hidden else self.crowd.backbone.vocab_size
        directions = term.directions(dims, self.crowd.count, self.global_step)
        return batch if directions is None else {**batch, "directions": directions}

    def prepare_evaluation_batch(self, batch: Batch) -> Batch:
        """Look for labels while the batch lies on the CPU, where that costs no wait for a device."""
        places = {"label_positions": True} if self.loss_shift else {"label_positions": True, "loss_positions": False}
        missing = {name: shift for name, shift in places.items() if name not in batch}
        return {**batch, **{name: label_positions(batch["labels"], shift) for name, shift in missing.items()}}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of all agents on a batch.

        Args:
            batch: `input_ids`, `attention_mask` and `labels`, (B, T) for all agents or (K, B, T); packed also
                `segment_ids`.
        """
        batch = self.prepare_training_batch(batch)
        normaliser, share = self._portion(batch["labels"])
        objective = Objective(batch, self.diversity, self.global_step, normaliser, share, self.loss_shift)
        result = objective.of(self.crowd, self._grad_scale())
        terms = {"loss": result.total, "task_loss": result.losses.mean()}
        terms |= {f"loss_agent_{k}": value for k, value in enumerate(result.losses)}
        terms = {key: value / share for key, value in terms.items()}
        if objective.value is not None:
            terms["swd_loss"] = objective.value
        self.log_terms("train", terms, batch_size=self.count_items(batch), weight=share)
        return result.total

    def count_items(self, batch: Batch) -> int:
        """Texts that each agent reads (rows, where they are packed), for the throughput."""
        return batch["input_ids"].shape[-2]

    def on_after_backward(self) -> None:
        """After the last batch of a step, give each of its batches the weight of its tokens."""
        if self.normalise == "batch" or self.trainer.fit_loop.epoch_loop._should_accumulate():
            return
        batches = len(self._counts)
        if self.trainer.accumulate_grad_batches > 1:
            factor = self._counts[0] * batches / torch.stack(self._counts).sum()
            for weight in self.crowd.agents.parameters():
                if weight.grad is not None:
                    weight.grad.mul_(factor)
        self._counts = []

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Score the labelled tokens of a batch, by agent and for the mean of their predictions."""
        positions, wanted = targets(batch, self.loss_shift)
        if not len(wanted):
            return {}, 0
        logits = self.crowd.outputs(batch["input_ids"], batch["attention_mask"], logits_at=positions).logits
        block = max(1, BLOCK_VALUES // (logits.shape[0] * logits.shape[2]))
        parts = []
        for some, labels in zip(logits.split(block, 1), wanted.split(block), strict=True):
            log_probs = some.float().log_softmax(-1)
            weights = log_probs.new_full((len(log_probs),), -math.log(len(log_probs)))
            parts.append(token_scores(log_probs, aggregate(log_probs, weights), labels))
        return _means_of({name: torch.cat([part[name] for part in parts], -1) for name in parts[0]}), len(wanted)

    def log_samples(self, batches: list[Any], last: bool) -> None:
        """Show what each agent and the crowd answer to the first questions, and the part of the agents that agree."""
        if not self.can_sample_on_rank_zero:
            return
        asked = questions(batches, self.sample_settings.items, self.tokenizer, self.template)
        if not asked:
            return
        prompts = [each.prompt for each in asked]
        limit = room(asked, self.crowd.backbone.context_tokens, self.max_new_tokens)
        writer: Any = self.inference(max_new_tokens=limit)
        of_agents, of_crowd = writer.written(prompts, Vote()), writer.answers(prompts)
        rows = []
        for question, texts, text in zip(asked, of_agents, of_crowd, strict=True):
            agreement = round(vote([flexible_answer(each) for each in texts]).agreement, 2)
            cells = (in_one_line(each) for each in (question.text, *texts, text))
            rows.append([*cells, agreement, in_one_line(question.answer)])
        agents = (f"agent {number}" for number in range(self.crowd.count))
        self.write_media("table", "val/answers", ["question", *agents, "crowd", "agreement", "right answer"], rows)

    def _portion(self, labels: Tensor) -> tuple[Tensor | None, Tensor | float]:
        """What the losses of a batch are divided by, and how much the batch counts in its step."""
        if self.normalise == "batch":
            return None, 1.0
        count = label_count(labels, self.crowd.count, self.loss_shift).clamp(min=1)
        self._counts.append(mean_over_ranks(count))
        return self._counts[0], count / self._counts[0]

    def _grad_scale(self) -> float:
        """Scale of float16's gradients, for those that are computed in parts."""
        if self.crowd.mode != "chunked" or self._trainer is None:
            return 1.0
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        return scaler.get_scale() if scaler is not None else 1.0


def _means_of(scores: Mapping[str, Tensor]) -> dict[str, Tensor | float]:
    """Means over tokens (the last axis) of what `token_scores` gives."""
    agents = scores["agent_nll"].double().mean(1)
    ensemble = scores["nll"].double().mean()
    return {
        "loss": agents.mean(),
        **{f"nll_agent_{k}": value for k, value in enumerate(agents)},
        "nll_ensemble": ensemble,
        "ambiguity": agents.mean() - ensemble,
        "pairwise_kl": scores["kl"].mean(),
        "disagreement": scores["disagreement"].mean(),
        "accuracy": scores["correct"].mean(),
    }


class _CrowdMeans(WeightedMeans):
    """Means over all tokens, and the least of the agents' among them: which agent that is, only the whole set shows."""

    def compute(self) -> dict[str, float]:
        """Reduce over all ranks and return the means."""
        means = super().compute()
        agents = [value for key, value in means.items() if key.startswith("nll_agent_")]
        return {**means, "nll_best": min(agents)} if agents else means
