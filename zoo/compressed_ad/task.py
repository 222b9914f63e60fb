"""Training of in-context policies: distillation of histories, pre-training of the compressor."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.common.checks import check_at_least, check_below
from zoo.compressed_ad.data.datamodule import HistoryData
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.losses import reconstruction_loss
from zoo.compressed_ad.nets.compression import FieldDecoder
from zoo.compressed_ad.nets.policy import InContextPolicy, Output
from zoo.compressed_ad.nets.steps import Steps
from zoo.compressed_ad.rollout import ValidationRollout, rollout
from zoo.training.freezing import freeze
from zoo.training.optimizers import LrScaling
from zoo.training.resume import item_seed
from zoo.training.task import OptimizerCallable, SchedulerCallable, SingleOptimizerTask, compile_module

log = logging.getLogger(__name__)

PRETRAINED = ("compressor.", "decoder.", "embedding.context.", "embedding.norm.")
SEED = 0  # of the positions that are reconstructed in a step


class PolicyTask(SingleOptimizerTask):
    """Base of the tasks that train an in-context policy on histories and may let it act in held-out tasks.

    Args:
        policy: the net that trains.
        env: the family of tasks that it acts in.
        episodes: that a context lives for in evaluation.
        greedy: take the most likely action in evaluation instead of sampling.
    """

    inference_class = "zoo.compressed_ad.Agent"
    usage_command = "zoo evaluate compressed_ad --run {run} --output FOLDER"
    inference_modules = ("policy", "env")
    shows_attention: ClassVar[bool] = False

    def __init__(
        self,
        policy: InContextPolicy,
        env: Env,
        optimizer: OptimizerCallable,
        scheduler: SchedulerCallable | None,
        lr_scaling: LrScaling | None,
        compile: bool,
        episodes: int = 100,
        greedy: bool = False,
    ) -> None:
        super().__init__(optimizer, scheduler, compile=compile, lr_scaling=lr_scaling)
        check_at_least(1, episodes=episodes)
        policy.check(env)
        self.policy = policy
        self.env = env
        self.episodes = episodes
        self.greedy = greedy
        self._rollouts: list[ValidationRollout] = []

    def setup(self, stage: str) -> None:
        """Compare the data with the environment, and pass the data's statistics to the policy."""
        data = getattr(self.trainer, "datamodule", None)
        env = getattr(data, "env", None)
        if env is not None and env.describe() != self.env.describe():
            raise ValueError(f"model.env is {self.env.describe()}, the data's is {env.describe()}: make them the same")
        if stage == "fit" and self.policy.uses_statistics and data is not None:
            self.policy.fit_statistics(data.statistics())
        super().setup(stage)

    def reconstructed_lengths(self, length: int) -> list[int]:
        """Return how many transitions are reconstructed after each compression of a history of `length`."""
        raise NotImplementedError

    def prepare_training_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add the positions that a `FieldDecoder` reconstructs, of each compression; none for other decoders."""
        if "reconstructed" in batch:
            return batch
        positions, decoder = [], self.policy.decoder
        if isinstance(decoder, FieldDecoder):
            for number, length in enumerate(self.reconstructed_lengths(batch["steps"].length)):
                seed = item_seed(SEED, self.global_step, number)
                positions.append(decoder.sample_positions(length, seed))
        return {**batch, "reconstructed": positions}

    def evaluate_returns(self, batch: dict[str, Any], stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Act in `tasks` with `seeds`, and return the mean returns."""
        tasks, is_shown = batch["tasks"], stage == "val" and self.sample_settings.showing
        record = is_shown and not self._rollouts and isinstance(self.env, GridEnv)
        result = rollout(self.policy, self.env, tasks, batch["seeds"], self.episodes, self.greedy, record)
        returns = result.returns
        if is_shown:
            listed = tasks.tolist()
            rows = [row for row, task in enumerate(listed) if task not in listed[:row]][: self.sample_settings.items]
            steps = Steps(*(field[rows].cpu() for field in result.steps)) if result.steps else None
            self._rollouts.append((tasks.cpu(), returns, rows, steps))
        means = {"return_first": returns[:, 0], "return_last": returns[:, -1], "return_mean": returns}
        return {key: value.double().mean() for key, value in means.items()}, len(returns)

    def on_validation_epoch_start(self) -> None:
        """Discard the rollouts of the last validation."""
        super().on_validation_epoch_start()
        self._rollouts = []

    def log_samples(self, batches: list[dict[str, Any]], last: bool) -> None:
        """Show the samples of the first histories and of all rollouts, see `Agent.draw_samples`."""
        parts = [self._rollouts] * self.trainer.world_size
        if self.trainer.world_size > 1:
            dist.all_gather_object(parts, self._rollouts)
        rollouts = [each for part in parts for each in part]
        histories: Steps | None = next((batch["steps"] for batch in batches if "steps" in batch), None)
        lengths = [] if histories is None else self.reconstructed_lengths(histories.length)
        compressed = None if histories is None or not lengths else histories.slice(0, lengths[0])
        attended = histories if self.shows_attention else None
        for sample in self.inference().draw_samples(rollouts, compressed, attended, last):
            self.write_media(*sample)


class DistillationTask(PolicyTask):
    """Algorithm distillation: predict the next action of a learning history from all that was before it.

    `val/return_first`, `val/return_last` and `val/return_mean` are the returns of the frozen policy in held-out
    tasks: first episode, last episode, mean.

    Args:
        policy: the net that trains.
        env: the family of tasks that it acts in when it is evaluated.
        dense: train the actions of all steps; false trains an item's last one, as the original does.
        label_smoothing: of the actions, in [0, 1).
        recon_weight: of the reconstruction loss, the mean over all compressions; needs the policy's decoder.
        reward_weight: of a rewarded transition in the reconstruction.
        gradient_rounds: gradients flow through at most so many compressions in a row; all by default, 0 none.
        frozen: modules of the policy that do not train, as prefixes (`compressor`) or globs of their names.
        episodes: that a context lives for in evaluation; an option of inference.
        greedy: take the most likely action in evaluation instead of sampling; an option of inference.

    Source: Laskin et al., "In-context Reinforcement Learning with Algorithm Distillation" (2022), equation 1.
    """

    shows_attention = True

    @property
    def find_unused_parameters(self) -> bool:
        """Whether a step without a compression leaves the compressor without gradients."""
        return self.policy.compressor is not None or self.policy.decoder is not None

    def __init__(
        self,
        policy: InContextPolicy,
        env: Env,
        optimizer: OptimizerCallable,
        scheduler: SchedulerCallable | None = None,
        dense: bool = True,
        label_smoothing: float = 0.0,
        recon_weight: float = 0.0,
        reward_weight: float = 1.0,
        gradient_rounds: int | None = None,
        frozen: list[str] | None = None,
        episodes: int = 100,
        greedy: bool = False,
        lr_scaling: LrScaling | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__(policy, env, optimizer, scheduler, lr_scaling, compile, episodes, greedy)
        if dense and policy.latent_mask == "full":
            raise ValueError("model: dense true needs policy.latent_mask causal; full shows the latents every query")
        if recon_weight and (policy.decoder is None or policy.compressor is None):
            raise ValueError(f"model.recon_weight is {recon_weight}, which needs policy.compressor and policy.decoder")
        check_at_least(0, label_smoothing=label_smoothing, recon_weight=recon_weight, reward_weight=reward_weight)
        check_below(1, label_smoothing=label_smoothing)
        if frozen:
            freeze(policy, frozen)
        self.dense = dense
        self.label_smoothing = label_smoothing
        self.recon_weight = recon_weight
        self.reward_weight = reward_weight
        self.gradient_rounds = gradient_rounds

    def setup(self, stage: str) -> None:
        """Compare the lengths of the training items with the window of a policy that compresses.

        Raises:
            ValueError: a curriculum is for another window or number of latents.
        """
        super().setup(stage)
        data, policy = getattr(self.trainer, "datamodule", None), self.policy
        if stage != "fit" or policy.compressor is None or not isinstance(data, HistoryData):
            return
        curriculum = data.curriculum
        if curriculum is not None and (curriculum.window, curriculum.num_latents) != (
            policy.window,
            policy.num_latents,
        ):
            raise ValueError(
                f"data.curriculum is for a window of {curriculum.window} and {curriculum.num_latents} latents, the "
                f"policy has {policy.window} and {policy.num_latents}"
            )
        if (longest := data.longest()) <= policy.capacity(False):
            log.warning(
                "training never compresses: items have at most %d steps, and %d fill the window before the first "
                "compression; raise data.length or the curriculum's max_compressions",
                longest, policy.capacity(False),
            )  # fmt: skip

    def reconstructed_lengths(self, length: int) -> list[int]:
        """Return the segments of the policy; none without reconstruction loss."""
        return self.policy.segments(length)[:-1] if self.recon_weight else []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the loss of the actions and of the reconstruction, on `steps` of one length."""
        batch = self.prepare_training_batch(batch)
        steps: Steps = batch["steps"]
        output = self.policy(steps, self.gradient_rounds, last_only=not self.dense)
        terms = self._action_terms(output, batch, self.label_smoothing)
        loss = terms["loss_action"]
        if self.recon_weight:
            losses = [
                reconstruction_loss(self.policy, each, self.reward_weight, positions)
                for each, positions in zip_longest(output.compressions, batch["reconstructed"])
            ]
            terms["loss_recon"] = torch.stack(losses).mean() if losses else torch.zeros_like(loss)
            loss = loss + self.recon_weight * terms["loss_recon"]
        counts = {"compressions": len(output.compressions), "length": steps.length}
        curriculum = getattr(getattr(self.trainer, "datamodule", None), "curriculum", None)
        if curriculum is not None:
            counts["stage"] = curriculum.stage(self.global_step)
        terms |= {key: torch.tensor(float(value)) for key, value in counts.items()}
        self.log_terms("train", {"loss": loss, **terms}, batch_size=len(steps.actions))
        return loss

    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Return the loss of histories (`steps`), or the returns of acting in `tasks` with `seeds`."""
        if "tasks" not in batch:
            steps: Steps = batch["steps"]
            return self._action_terms(self.policy(steps, last_only=not self.dense), batch), len(steps.actions)
        return self.evaluate_returns(batch, stage)

    def _action_terms(self, output: Output, batch: dict[str, Any], label_smoothing: float = 0.0) -> dict[str, Tensor]:
        """Return the negative log-likelihood, in nats, and accuracy or distance of the actions."""
        head = self.policy.head
        actions = batch["steps"].actions[:, -output.logits.shape[1] :]
        return {
            "loss_action": head.losses(output.logits, actions, label_smoothing).mean(),
            head.error: head.errors(output.logits, actions).mean(),
        }


class PretrainTask(PolicyTask):
    """Pre-training: a policy's compressor and decoder learn to reconstruct a part of a history.

    The transitions' embedding trains with them; nothing else does. Begin a `DistillationTask` with it by `init_from`.
    A part that exceeds the window is compressed again and again, as the policy does while it acts. After each time a
    plain decoder reconstructs the tokens, old latents included, and a `FieldDecoder` all transitions since the start.

    Args:
        policy: with compressor and decoder.
        env: the family of tasks that the histories are of.
        reward_weight: of a rewarded transition.
    """

    usage_command = "zoo fit RECIPE --init_from {run}"

    def __init__(
        self,
        policy: InContextPolicy,
        env: Env,
        optimizer: OptimizerCallable,
        scheduler: SchedulerCallable | None = None,
        reward_weight: float = 1.0,
        lr_scaling: LrScaling | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__(policy, env, optimizer, scheduler, lr_scaling, compile)
        if policy.compressor is None or policy.decoder is None or not list(policy.compressor.parameters()):
            raise ValueError("model.policy: pre-training needs a compressor that learns, and a decoder")
        freeze(policy, [name for name, _ in policy.named_parameters() if not name.startswith(PRETRAINED)])
        self.reward_weight = reward_weight

    def setup(self, stage: str) -> None:
        """Refuse evaluation by acting, which nothing here is trained for, with a ValueError."""
        super().setup(stage)
        evaluation = getattr(getattr(self.trainer, "datamodule", None), "evaluation", None)
        if evaluation is not None and evaluation.seeds:
            raise ValueError("pre-training does not act: set data.init_args.evaluation.seeds to 0")

    def on_fit_start(self) -> None:
        """Compile what trains, when asked to: the policy as a whole is not called."""
        for module in (self.policy.compressor, self.policy.decoder):
            if self.compile_modules and module is not None:
                compile_module(module)

    def reconstructed_lengths(self, length: int) -> list[int]:
        """Return all transitions so far for a `FieldDecoder`, the new ones for a plain decoder."""
        new = self.policy.segments(length)
        return list(accumulate(new)) if isinstance(self.policy.decoder, FieldDecoder) else new

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the mean loss of the compressions of `steps`, B histories of one length."""
        batch = self.prepare_training_batch(batch)
        loss = self._loss(batch["steps"], batch["reconstructed"])
        self.log_terms("train", {"loss": loss}, batch_size=len(batch["steps"].actions))
        return loss

    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Return the same loss on held-out tasks."""
        return {"loss": self._loss(batch["steps"])}, len(batch["steps"].actions)

    def _loss(self, steps: Steps, reconstructed: Sequence[Tensor] = ()) -> Tensor:
        latents, losses = None, []
        ends = list(accumulate(self.policy.segments(steps.length)))
        lengths = self.reconstructed_lengths(steps.length)
        for start, end, length, positions in zip_longest([0, *ends[:-1]], ends, lengths, reconstructed):
            compression = self.policy.compress(latents, steps.slice(start, end))
            latents = compression.latents
            target = compression._replace(steps=steps.slice(end - length, end))
            losses.append(reconstruction_loss(self.policy, target, self.reward_weight, positions))
        return torch.stack(losses).mean()
