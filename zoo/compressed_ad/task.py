"""Training of in-context policies: distillation of histories, pre-training of the compressor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.common.checks import check_at_least, check_below
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.envs.grids import GridEnv
from zoo.compressed_ad.losses import reconstruction_loss
from zoo.compressed_ad.nets.compression import FieldDecoder
from zoo.compressed_ad.nets.policy import ActingPolicy, InContextPolicy, Output
from zoo.compressed_ad.nets.steps import Steps
from zoo.compressed_ad.rendering import attention, draw, episode_frames, learning_curve, reconstruction
from zoo.compressed_ad.rollout import rollout
from zoo.training.freezing import freeze
from zoo.training.resume import item_seed
from zoo.training.schedules import LrScaling
from zoo.training.task import OptimizerCallable, SchedulerCallable, SingleOptimizerTask

PRETRAINED = ("compressor.", "decoder.", "embedding.context.", "embedding.norm.")
SEED = 0  # of the positions that are reconstructed in a step


class ActingTask(SingleOptimizerTask):
    """Base of the tasks that train a policy and may let it act in held-out tasks.

    Args:
        policy: the net that trains.
        env: the family of tasks that it acts in.
        episodes: that a context lives for in evaluation.
        greedy: take the most likely action in evaluation instead of drawing.
    """

    inference_class = "zoo.compressed_ad.Agent"
    usage_command = "zoo evaluate compressed_ad --run {run} --output FOLDER"
    inference_modules = ("policy", "env")
    policy: ActingPolicy

    def __init__(
        self,
        policy: ActingPolicy,
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
        self._played: list[tuple[Tensor, Tensor, list[int], Steps | None]] = []  # tasks, returns, steps of some rows

    def acted(self, batch: dict[str, Any], stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """The returns of acting in `tasks` with `seeds`."""
        tasks, kept = batch["tasks"], stage == "val" and self.sample_settings.showing
        record = kept and not self._played and isinstance(self.env, GridEnv)
        played = rollout(self.policy, self.env, tasks, batch["seeds"], self.episodes, self.greedy, record=record)
        returns = played.returns
        if kept:
            listed = tasks.tolist()
            rows = [row for row, task in enumerate(listed) if task not in listed[:row]][: self.sample_settings.items]
            shown = Steps(*(field[rows].cpu() for field in played.steps)) if played.steps else None
            self._played.append((tasks.cpu(), returns, rows, shown))
        means = {"return_first": returns[:, 0], "return_last": returns[:, -1], "return_mean": returns}
        return {key: value.double().mean() for key, value in means.items()}, len(returns)

    def on_validation_epoch_start(self) -> None:
        """Forget the last validation."""
        super().on_validation_epoch_start()
        self._played = []

    def log_samples(self, batches: list[dict[str, Any]], last: bool) -> None:
        """Show how returns rise in context and, at the end, episodes of some tasks."""
        parts = [self._played] * self.trainer.world_size
        if self.trainer.world_size > 1:
            dist.all_gather_object(parts, self._played)
        if played := [each for part in parts for each in part]:
            tasks, returns = (torch.cat(each) for each in list(zip(*played, strict=True))[:2])
            self.write_media("figure", "val/learning", learning_curve(self.env, tasks, returns))
            first, _, rows, steps = played[0]
            if last and steps is not None and isinstance(self.env, GridEnv):
                self.write_media("animation", "val/episodes", episode_frames(self.env, first[rows], steps))


class PolicyTask(ActingTask):
    """Base of the tasks that train an in-context policy on histories."""

    policy: InContextPolicy

    def setup(self, stage: str) -> None:
        """Compare the data with the environment, and let the policy take over how the data is spread."""
        data = getattr(self.trainer, "datamodule", None)
        env = getattr(data, "env", None)
        if env is not None and env.describe() != self.env.describe():
            raise ValueError(f"model.env is {self.env.describe()}, the data's is {env.describe()}: make them the same")
        if stage == "fit" and self.policy.uses_statistics and data is not None:
            self.policy.fit_statistics(data.statistics())
        super().setup(stage)

    def compressed(self, length: int) -> list[int]:
        """How many transitions each compression of a history of `length` takes in, whose reconstruction trains."""
        raise NotImplementedError

    def prepare_training_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add the positions that a `FieldDecoder` reconstructs, of each compression; none for other decoders."""
        if "reconstructed" in batch:
            return batch
        chosen, decoder = [], self.policy.decoder
        if isinstance(decoder, FieldDecoder):
            for number, length in enumerate(self.compressed(batch["steps"].length)):
                seed = item_seed(SEED, self.global_step, number)
                chosen.append(decoder.chosen(length, seed, torch.device("cpu")))
        return {**batch, "reconstructed": chosen}

    def log_samples(self, batches: list[dict[str, Any]], last: bool) -> None:
        """Show a held-out history beside what the decoder gives back of it, where that is trained."""
        steps = self._histories(batches)
        if steps is not None and (lengths := self.compressed(steps.length)):
            self.write_media("figure", "val/reconstruction", reconstruction(self.policy, steps.slice(0, lengths[0])))

    def _histories(self, batches: list[dict[str, Any]]) -> Steps | None:
        return next((batch["steps"] for batch in batches if "steps" in batch), None)


class DistillationTask(PolicyTask):
    """Algorithm distillation: predict the next action of a learning history from all that was before it.

    `val/return_first`, `val/return_last` and `val/return_mean` are what the frozen policy earns in an episode of
    held-out tasks, the first, the last, and on average.

    Args:
        policy: the net that trains.
        env: the family of tasks that it acts in when it is evaluated.
        scheduler: of the learning rate, counted in optimizer steps.
        dense: train the actions of all steps; false trains an item's last one, as the original does.
        label_smoothing: of the actions, in [0, 1).
        recon_weight: of the reconstruction loss, the mean over all compressions; needs the policy's decoder.
        reward_weight: of a rewarded transition in the reconstruction.
        gradient_rounds: gradients flow through at most so many compressions in a row; all by default, 0 none.
        frozen: parts of the policy that do not train, as prefixes (`compressor`) or globs of their names.
        episodes: that a context lives for in evaluation; an option of inference.
        greedy: take the most likely action in evaluation instead of drawing; an option of inference.

    Source: Laskin et al., "In-context Reinforcement Learning with Algorithm Distillation" (2022), equation 1.
    """

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

    def compressed(self, length: int) -> list[int]:
        """Those of the policy; none without reconstruction loss."""
        return self.policy.segments(length)[:-1] if self.recon_weight else []

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The actions' cross-entropy, and how badly the latents keep what was compressed, on `steps` of one length."""
        batch = self.prepare_training_batch(batch)
        steps: Steps = batch["steps"]
        output = self.policy(steps, self.gradient_rounds, last_only=not self.dense)
        terms = self._action_terms(output, batch, self.label_smoothing)
        loss = terms["loss_action"]
        if self.recon_weight:
            losses = [
                reconstruction_loss(self.policy, each, self.reward_weight, reconstructed=reconstructed)
                for each, reconstructed in zip_longest(output.compressions, batch["reconstructed"])
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
        """The loss of histories (`steps`), or the returns of acting in `tasks` with `seeds`."""
        if "tasks" not in batch:
            steps: Steps = batch["steps"]
            return self._action_terms(self.policy(steps, last_only=not self.dense), batch), len(steps.actions)
        return self.acted(batch, stage)

    def log_samples(self, batches: list[dict[str, Any]], last: bool) -> None:
        """Show how returns rise in context, what the last block attends to and, at the end, episodes of some tasks."""
        ActingTask.log_samples(self, batches, last)
        PolicyTask.log_samples(self, batches, last)
        histories = self._histories(batches)
        if histories is not None:
            weights, latents = attention(self.policy, Steps(*(field[:1] for field in histories)))
            self.write_media("figure", "val/attention", draw(weights[0], latents))

    def _action_terms(self, output: Output, batch: dict[str, Any], label_smoothing: float = 0.0) -> dict[str, Tensor]:
        """Negative log-likelihood, in nats, and share of actions predicted rightly, or how far off they are."""
        head = self.policy.head
        actions = batch["steps"].actions[:, -output.logits.shape[1] :]
        return {
            "loss_action": head.losses(output.logits, actions, label_smoothing).mean(),
            head.error: head.errors(output.logits, actions).mean(),
        }


class PretrainTask(PolicyTask):
    """Pre-training: a policy's compressor and decoder learn to keep and to reconstruct a piece of a history.

    The transitions' embedding trains with them; nothing else does. Begin a `DistillationTask` with it by `init_from`.
    A piece that exceeds the window is compressed again and again, as the policy does while it acts. After each time a
    plain decoder gives the tokens back, old latents included, and a `FieldDecoder` all transitions since the beginning.

    Args:
        policy: with compressor and decoder.
        env: the family of tasks that the histories are of.
        scheduler: of the learning rate, counted in optimizer steps.
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

    def compressed(self, length: int) -> list[int]:
        """All that went in since the beginning; for a plain decoder, which gives back the old latents, what is new."""
        new = self.policy.segments(length)
        return list(accumulate(new)) if isinstance(self.policy.decoder, FieldDecoder) else new

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The mean loss of the compressions of `steps`, B histories of one length."""
        batch = self.prepare_training_batch(batch)
        loss = self._loss(batch["steps"], batch["reconstructed"])
        self.log_terms("train", {"loss": loss}, batch_size=len(batch["steps"].actions))
        return loss

    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """The same loss on held-out tasks; nothing is acted."""
        return {"loss": self._loss(batch["steps"])}, len(batch["steps"].actions)

    def _loss(self, steps: Steps, reconstructed: Sequence[Tensor] = ()) -> Tensor:
        latents, losses = None, []
        ends = list(accumulate(self.policy.segments(steps.length)))
        lengths = self.compressed(steps.length)
        for start, end, length, chosen in zip_longest([0, *ends[:-1]], ends, lengths, reconstructed):
            compression = self.policy.compress(latents, steps.slice(start, end))
            latents = compression.latents
            told = compression._replace(steps=steps.slice(end - length, end))
            losses.append(reconstruction_loss(self.policy, told, self.reward_weight, reconstructed=chosen))
        return torch.stack(losses).mean()
