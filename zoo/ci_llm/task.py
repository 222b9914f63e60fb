"""Training of a crowd: next-token loss of every agent, minus a weighted diversity term."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from zoo.ci_llm.aggregation import Aggregator, Vote, aggregate
from zoo.ci_llm.answers import flexible_answer, vote
from zoo.ci_llm.data.datamodule import check_texts
from zoo.ci_llm.data.text_files import TextFormat
from zoo.ci_llm.data.tokenizers import Tokenizer
from zoo.ci_llm.losses.diversity import Diversity
from zoo.ci_llm.losses.likelihood import label_positions
from zoo.ci_llm.losses.metrics import mean_scores, token_scores
from zoo.ci_llm.losses.objective import Batch, CrowdObjective, count_labels, label_targets
from zoo.ci_llm.nets.crowd import Crowd
from zoo.ci_llm.nets.sampling import Sampling
from zoo.ci_llm.validation_texts import write_answers
from zoo.common.checks import check_one_of, check_within
from zoo.training.optimizers import LrScaling
from zoo.training.task import OptimizerCallable, SchedulerCallable, SingleOptimizerTask, WeightedMeans

MAX_SCORED_VALUES = 2**26  # logits that are scored at once


class CrowdTask(SingleOptimizerTask):
    """Trains all agents of a crowd together: mean of their losses minus weight times diversity.

    `val/loss` and `test/loss` are the mean NLL of the agents, in nats per labelled token; further metrics are
    `nll_agent_<k>`, `nll_best` (least of the agents), `nll_ensemble` (of the mean of the predictions), `ambiguity`
    (loss minus nll_ensemble), `pairwise_kl`, `disagreement` of the likeliest tokens and `accuracy` of the ensemble's.

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
        template: of the model's input, with `{prompt}`; that of the data.
        prompt_field: of a line of a file of prompts, holds the prompt; that of the data.
        aggregator: combines the agents in generation; their mean by default.
        max_new_tokens: most tokens of an answer.
        sampling: how tokens are chosen; the likeliest by default.
        prompt_batch: prompts that are answered together.
        answer_seed: of sampled answers.

    Source: specification of CI-LLM, section 2.
    """

    inference_class = "zoo.ci_llm.TextGenerator"
    usage_command = "zoo predict --ckpt_path {run} --input PROMPTS.jsonl --output FOLDER"
    inference_modules = ("crowd", "tokenizer")
    template: str
    max_new_tokens: int

    def __init__(
        self,
        crowd: Crowd,
        tokenizer: Tokenizer,
        optimizer: OptimizerCallable,
        diversity: Diversity | None = None,
        scheduler: SchedulerCallable | None = None,
        normalise: Literal["batch", "global"] = "global",
        loss_shift: bool = True,
        template: str = TextFormat.template,
        prompt_field: str = TextFormat.prompt_field,
        aggregator: Aggregator | None = None,
        max_new_tokens: int = 128,
        sampling: Sampling | None = None,
        prompt_batch: int = 8,
        answer_seed: int = 0,
        lr_scaling: LrScaling | None = None,
    ) -> None:
        super().__init__(optimizer, scheduler, lr_scaling=lr_scaling)
        check_one_of(("batch", "global"), normalise=normalise)
        if diversity is not None:
            depth = len(crowd.backbone.blocks)
            check_within(-depth - 1, depth, layer=diversity.layer)
            if diversity.enabled and diversity.layer % (depth + 1) <= crowd.first_block:
                raise ValueError(
                    f"diversity.layer is {diversity.layer}, where all agents have the same hidden states: the first "
                    f"adapted block is {crowd.first_block} of 0 to {depth - 1}; take a layer above it, such as -1"
                )
        self.crowd = crowd
        self.tokenizer = tokenizer
        self.diversity = diversity
        self.normalise = normalise
        self.loss_shift = loss_shift
        self.store_options(locals())
        self._means = _CrowdMeans()
        self._label_counts: list[Tensor] = []  # of the batches of the current step, means over ranks
        self._share: Tensor | float = 1.0  # of the last batch

    @property
    def context_tokens(self) -> int | None:
        """Longest text of the backbone in tokens, where its configuration knows it."""
        return self.crowd.backbone.context_tokens

    def setup(self, stage: str) -> None:
        """Compare the tokenizer with the backbone, and the data with tokenizer, template and number of agents."""
        super().setup(stage)
        self.tokenizer.check_vocabulary(self.crowd.backbone.vocab_size)
        if stage == "fit":
            check_texts(self.trainer, self.tokenizer, self.template)
        data: Any = getattr(self.trainer, "datamodule", None)
        agents = getattr(data, "agents", self.crowd.count)
        if agents != self.crowd.count and (data.agent_data == "shuffled" or data.token_budget is not None):
            raise ValueError(
                f"data.init_args.agents is {agents}, the crowd has {self.crowd.count}: set it to "
                "${model.init_args.crowd.init_args.agents.init_args.count}"
            )

    def prepare_training_batch(self, batch: Batch) -> Batch:
        """Add `directions` of the diversity term and the positions of the losses, where they are missing."""
        batch = self.prepare_evaluation_batch(batch)
        term = self.diversity
        if term is None or not term.enabled or self.crowd.count < 2 or "directions" in batch:
            return batch
        return {**batch, "directions": term.directions(self.crowd.backbone.dim, self.crowd.count, self.global_step)}

    def prepare_evaluation_batch(self, batch: Batch) -> Batch:
        """Find label positions while the batch is on the CPU, without waiting for a device."""
        return batch if "label_positions" in batch else {**batch, "label_positions": label_positions(batch["labels"])}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Loss of all agents on a batch of `input_ids`, `attention_mask` and `labels`, (B, T) or (K, B, T)."""
        batch = self.prepare_training_batch(batch)
        normaliser, share = self._normaliser_and_share(batch["labels"])
        objective = CrowdObjective(batch, self.diversity, self.global_step, normaliser, share, self.loss_shift)
        result = objective.compute(self.crowd, self._grad_scale())
        terms = {"loss": result.total, "task_loss": result.losses.mean()}
        terms |= {f"loss_agent_{k}": value for k, value in enumerate(result.losses)}
        terms = {key: value / share for key, value in terms.items()}
        if result.diversity is not None:
            terms["swd_loss"] = result.diversity
        self.log_terms("train", terms, batch_size=self.count_items(batch), weight=share)
        self._share = share
        return terms["loss"]

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """Back-propagate a batch's mean loss by the share that the batch has in its step."""
        super().backward(loss * self._share, *args, **kwargs)

    def count_items(self, batch: Batch) -> int:
        """Texts that each agent reads, for the throughput."""
        return batch["input_ids"].shape[-2]

    def on_after_backward(self) -> None:
        """After the last batch of a step, weight the batches by their labelled tokens."""
        if self.normalise == "batch" or self.trainer.fit_loop.epoch_loop._should_accumulate():
            return
        if self.trainer.accumulate_grad_batches > 1:
            factor = self._label_counts[0] * len(self._label_counts) / torch.stack(self._label_counts).sum()
            for weight in self.crowd.agents.parameters():
                if weight.grad is not None:
                    weight.grad.mul_(factor)
        self._label_counts = []

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Score the labelled tokens of a batch, by agent and for the mean of their predictions."""
        positions, targets = label_targets(batch, self.loss_shift)
        if not len(targets):
            return {}, 0
        logits = self.crowd.outputs(batch["input_ids"], batch["attention_mask"], logits_at=positions).logits
        size = max(1, MAX_SCORED_VALUES // (logits.shape[0] * logits.shape[2]))
        blocks = []
        for block, labels in zip(logits.split(size, 1), targets.split(size), strict=True):
            log_probs = block.float().log_softmax(-1)
            log_weights = log_probs.new_full((len(log_probs),), -math.log(len(log_probs)))
            blocks.append(token_scores(log_probs, aggregate(log_probs, log_weights), labels))
        scores = {name: torch.cat([block[name] for block in blocks], -1) for name in blocks[0]}
        means = mean_scores(scores)
        return {"loss": means.pop("nll_mean"), **means}, len(targets)

    def log_samples(self, batches: list[Any], last: bool) -> None:
        """Write a table of the agents' and the crowd's answers to the first questions, and the agents' agreement."""

        def answer(prompts: list[list[int]], limit: int) -> list[list[str]]:
            generator: Any = self.inference(max_new_tokens=limit)
            agents, crowd = generator.generate_texts(prompts, Vote()), generator.generate_answers(prompts)
            shares = [vote([flexible_answer(each) for each in texts]).agreement for texts in agents]
            return [[*row, text, f"{share:.2g}"] for row, text, share in zip(agents, crowd, shares, strict=True)]

        agents = (f"agent {number}" for number in range(self.crowd.count))
        heads = ["question", *agents, "crowd", "agreement", "right answer"]
        write_answers(self, batches, "val/answers", heads, answer)

    def _normaliser_and_share(self, labels: Tensor) -> tuple[Tensor | None, Tensor | float]:
        """The divisor of a batch's losses, and the weight of the batch in its step."""
        if self.normalise == "batch":
            return None, 1.0
        count = count_labels(labels, self.crowd.count, self.loss_shift).clamp(min=1)
        mean = count if self._trainer is None else self.trainer.strategy.reduce(count.clone(), reduce_op="mean")
        self._label_counts.append(mean)
        return self._label_counts[0], count / self._label_counts[0]

    def _grad_scale(self) -> float:
        """Scale of float16's gradients, for those that are computed in chunks."""
        if self.crowd.mode != "chunked" or self._trainer is None:
            return 1.0
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        return scaler.get_scale() if scaler is not None else 1.0


class _CrowdMeans(WeightedMeans):
    """Means over all tokens, and the least of the agents' means."""

    def compute(self) -> dict[str, float]:
        """Reduce over all ranks and return the means."""
        means = super().compute()
        agents = [value for key, value in means.items() if key.startswith("nll_agent_")]
        return {**means, "nll_best": min(agents)} if agents else means
