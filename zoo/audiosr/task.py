"""Training of the latent diffusion: clean latents from noise and the latents of the band-limited input."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from zoo.audio.analysis.mel import LogMel
from zoo.audiosr.diffusion import CosineDiffusion, Sampler, row_noise
from zoo.audiosr.losses import DiffusionTerm, Objective, sample_step_noise, validate_losses, weighted_sum
from zoo.audiosr.nets.denoiser import UNCONDITIONAL, Denoiser
from zoo.audiosr.nets.features import MelFeatures, crop_to_multiple
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.audiosr.options import DEFAULT_RESTORE, RestoreOptions
from zoo.blocks.autoencoder import posterior_mean, sample_posterior
from zoo.common.checks import check_one_of, check_within
from zoo.training.datamodule import ZooDataModule
from zoo.training.freezing import freeze, set_frozen_eval
from zoo.training.resume import item_seed
from zoo.training.strategies.sharding import gather_weights
from zoo.training.task import CompileMode, OptimizerCallable, SingleOptimizerTask, WeightedMeans, compile_module

log = logging.getLogger(__name__)

Batch = dict[str, Any]
Mode = Literal["full", "global_encoder", "unet_only"]

VALIDATION_TIMES = 8
_ENCODER = "global_encoder"
_NO_EPOCH = -1  # in the seeds of validation


@dataclass(frozen=True)
class ConditionOptions:
    """What the net is conditioned on in training.

    Args:
        dropout: probability that an item is trained without its condition, for guidance.
        global_input: input of the global encoder: "lowres", as in inference, or, as in the original, the "target".
    """

    dropout: float = 0.1
    global_input: Literal["lowres", "target"] = "lowres"

    def __post_init__(self) -> None:
        check_within(0, 1, dropout=self.dropout)
        check_one_of(("lowres", "target"), global_input=self.global_input)


@dataclass(frozen=True)
class ValidationOptions:
    """What a validation restores.

    Args:
        restore_items: number of items, each a clip at one cut-off, of each process.
        sampler: for them, such as one with fewer steps; that of `restore` when null.
    """

    restore_items: int = 3
    sampler: Sampler | None = None


@dataclass(frozen=True)
class CompileOptions:
    """Options of torch.compile, with `compile: true`; uncompiled where that fails.

    Args:
        mode: of torch.compile.
        fullgraph: refuse breaks of the graph.
    """

    mode: CompileMode = "default"
    fullgraph: bool = False


DEFAULT_CONDITION, DEFAULT_VALIDATION, DEFAULT_COMPILE = ConditionOptions(), ValidationOptions(), CompileOptions()


def train_only(net: Denoiser, trains: Mode | Sequence[str]) -> dict[str, int]:
    """Freeze all groups of a denoiser but those that train; components frozen completely go to evaluation mode.

    Args:
        net: in place.
        trains: "full": all of it; "global_encoder": the encoder alone; "unet_only": all but the encoder; or a list of
            names from `Denoiser.groups`. Numbers of weights of the groups that train are returned.
    """
    groups = net.groups()
    presets = {
        "full": list(groups),
        "global_encoder": [_ENCODER],
        "unet_only": [name for name in groups if name != _ENCODER],
    }
    if isinstance(trains, str) and trains not in presets:
        raise ValueError(f"trains is one of {', '.join(get_args(Mode))}, or a list of groups; found {trains!r}")
    chosen = presets[trains] if isinstance(trains, str) else list(trains)
    unknown = [name for name in chosen if name not in groups]
    if unknown or not chosen:
        raise ValueError(f"trains: this net has the groups {', '.join(groups)}; found {', '.join(unknown) or 'none'}")
    parameters = dict(net.named_parameters())
    freeze(net, [name for group, names in groups.items() if group not in chosen for name in names])
    return {group: sum(parameters[name].numel() for name in groups[group]) for group in chosen}


def check_components(
    net: Denoiser, autoencoder: FrozenAutoencoder, features: MelFeatures, vocoder: FrozenVocoder | None
) -> None:
    """Compare the sizes of a diffusion's components; ValueError where they do not fit."""
    latents = autoencoder.latent_channels
    first, last = net.unet.input_blocks[0], net.unet.out[-1]
    channels = (next(first.parameters()).shape[1], next(last.parameters()).shape[0])
    if channels != (2 * latents, latents):
        raise ValueError(
            f"the UNet has in_channels {channels[0]} and out_channels {channels[1]}; expected {2 * latents} and "
            f"{latents}, as the autoencoder has {latents} latent channels"
        )
    factor = autoencoder.factor * net.unet.factor
    if features.n_mels % factor:
        raise ValueError(
            f"features.n_mels is {features.n_mels}; expected a multiple of {factor}, the factor of autoencoder and UNet"
        )
    if vocoder is not None and (vocoder.hop_length, vocoder.n_mels) != (features.hop_length, features.n_mels):
        raise ValueError(
            f"the vocoder makes {vocoder.hop_length} samples from {vocoder.n_mels} bands; expected "
            f"{features.hop_length} and {features.n_mels}, the features' hop and bands"
        )
    for name, front_end in (
        ("autoencoder", autoencoder.build_other("features")),
        ("vocoder", None if vocoder is None else vocoder.build_other("mel")),
    ):
        if isinstance(front_end, MelFeatures | LogMel) and not features.equals(front_end):
            raise ValueError(f"the {name} was trained on other mels than features makes: give both the same arguments")
    encoder = net.global_encoder
    if encoder is not None and encoder.n_mels != features.n_mels:
        raise ValueError(f"global_encoder.n_mels is {encoder.n_mels}, features.n_mels is {features.n_mels}")


class DiffusionTask(SingleOptimizerTask):
    """Stage 3: v-prediction (or noise) in the latents of a frozen autoencoder, conditioned on the input's latents.

    Diffusion step, noise and dropped condition depend on `restore.seed`, the number of the batch and the item's
    position in the batch of all processes: two processes with half the batch train like one, and a resume repeats them.

    Validation is deterministic: each item at 8 diffusion steps from 1/16 to 15/16 with fixed noise. Its `loss` is
    the weighted sum of the terms there. With a vocoder the first `validation.restore_items` items are restored: `lsd`,
    `lsd_hf` (above the cut-off), `lsd_lf`, each also as `unprocessed_...` (the input) and `ceiling_...` (the target
    through autoencoder and vocoder). The first `samples.items` of these are kept as sounds and spectra.

    Args:
        net: UNet and, if there is one, global encoder.
        autoencoder: frozen; one instance for targets and conditions.
        features: audio to log-mels, equal to those of the autoencoder and the vocoder.
        diffusion: steps, noise schedule and what the net predicts.
        losses: terms by name, such as `latent`, `mel`, `stft`.
        vocoder: frozen, for sound in validation, losses on sound, and inference; null trains without.
        latent_scale: factor on latents; "auto" is 1 / standard deviation of those of the first batch, over all ranks,
            and is saved with the weights; loaded weights keep theirs.
        condition: what the net is conditioned on.
        trains: which components train, see `zoo.audiosr.task.train_only`.
        parallel: "dp" spreads the loss over all GPUs of this process by `nn.DataParallel`, for machines without a
            collective back end; "none" leaves parallel work to the Trainer's strategy.
        restore: options of inference.
        validation: what a validation restores.
        compile_options: options of torch.compile.

    Source: Liu et al., "AudioSR" (2023), section 2; v: Salimans and Ho (2022).
    """

    inference_class = "zoo.audiosr.Restorer"
    inference_modules = ("net", "autoencoder", "vocoder", "features", "diffusion")
    fsdp_excluded_modules = ("autoencoder", "vocoder")  # decode the items of early diffusion steps alone
    restore: RestoreOptions

    def __init__(
        self,
        net: Denoiser,
        autoencoder: FrozenAutoencoder,
        features: MelFeatures,
        diffusion: CosineDiffusion,
        losses: dict[str, DiffusionTerm],
        optimizer: OptimizerCallable,
        *,
        vocoder: FrozenVocoder | None = None,
        latent_scale: Literal["auto"] | float = "auto",
        condition: ConditionOptions = DEFAULT_CONDITION,
        trains: Mode | list[str] = "full",
        parallel: Literal["none", "dp"] = "none",
        restore: RestoreOptions = DEFAULT_RESTORE,
        validation: ValidationOptions = DEFAULT_VALIDATION,
        compile_options: CompileOptions = DEFAULT_COMPILE,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        check_components(net, autoencoder, features, vocoder)
        self.net = net
        self.autoencoder = autoencoder
        self.features = features
        self.diffusion = diffusion
        self.vocoder = vocoder
        self.losses = validate_losses({**losses})
        net.latent_scale.fill_(math.nan if latent_scale == "auto" else latent_scale)  # until it is measured or loaded
        self.condition = condition
        self.parallel = parallel
        self.store_options(locals())
        self.restore_items = validation.restore_items
        self.validation_sampler = validation.sampler or restore.sampler
        self.compile_options = compile_options
        sizes = train_only(net, trains)
        log.info("trains: %s", ", ".join(f"{group} ({size:,} weights)" for group, size in sizes.items()))
        self._replicas: list[nn.Module] = []  # a list keeps it out of the state dict

    @property
    def find_unused_parameters(self) -> bool:
        """A fusion that replaces leaves out what is before it."""
        return self.net.unet.fusion == "replace"

    def train(self, mode: bool = True) -> Self:
        """Change the mode; frozen components of the net stay in evaluation mode."""
        super().train(mode)
        set_frozen_eval(self.net)
        return self

    def on_fit_start(self) -> None:
        """Measure the scale of the latents, unless weights brought one; replicate; compile."""
        if self.net.latent_scale.isnan():
            with gather_weights(self.trainer):
                self.net.latent_scale.copy_(self._measure_scale())
            log.info("latent_scale: %.5f", float(self.net.latent_scale))
        if self.parallel == "dp":
            self._replicas = [self._objective().replicate(self.device)]
        if self.compile_modules and any(isinstance(each, nn.DataParallel) for each in self._replicas):
            log.warning("compile: replicas of DataParallel cannot share compiled code; training goes on without")
        elif self.compile_modules:
            for module in self._compiled_modules():
                compile_module(module, self.compile_options.mode, self.compile_options.fullgraph)

    def _compiled_modules(self) -> list[nn.Module]:
        return [module for module in (self.net.unet, self.net.global_encoder) if module is not None]

    def prepare_training_batch(self, batch: Batch) -> Batch:
        """Add what is random."""
        if "step_noise" in batch:
            return batch
        progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress
        number = progress.total.processed  # of the batches before this one, also while it moves to the device
        rank, world = self.trainer.global_rank, self.trainer.world_size
        seeds = [item_seed(self.restore.seed, number, row * world + rank) for row in range(len(batch["high"]))]
        noise = sample_step_noise(seeds, self._latent_shape(batch), self.diffusion.steps, self.condition.dropout)
        return {**batch, "step_noise": noise}

    def prepare_evaluation_batch(self, batch: Batch) -> Batch:
        """Add the `noise` of items that have a number."""
        return {**batch, "noise": self._validation_noise(batch, batch["item"].tolist())} if "item" in batch else batch

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Compute the loss of `high` and `low` (B, 1, T) at one diffusion step per item, some conditions dropped."""
        batch = self.prepare_training_batch(batch)
        noise, scale = batch["step_noise"], self.net.latent_scale
        high, low = self._mels(batch)
        target, condition = self._moments(high), posterior_mean(self._moments(low))
        condition = torch.where(noise.keep_condition[:, None, None, None], condition, UNCONDITIONAL) * scale
        terms = self._compute_terms(
            sample_posterior(target, noise.posterior) * scale, condition, noise.times, noise.noise, noise.positions,
            self._full_audio(high, low),
        )  # fmt: skip
        self.log_terms("train", terms, batch_size=len(target))
        return terms["loss"]

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """Compute the terms at fixed diffusion steps of each item's own noise, and restore the first clips."""
        high, low = self._mels(batch)
        count, scale = len(high), self.net.latent_scale
        latent, condition = (posterior_mean(self._moments(mel)) * scale for mel in (high, low))
        noise = self._evaluation_noise(batch, batch_idx)
        times = (torch.arange(VALIDATION_TIMES, device=high.device) + 0.5) / VALIDATION_TIMES * self.diffusion.steps
        full_audio = self._full_audio(high, low)
        positions = torch.full((count * VALIDATION_TIMES,), 0.5, device=high.device)
        terms = self._compute_terms(
            _repeat(latent), _repeat(condition), times.long().repeat(count), _repeat(noise),
            positions, None if full_audio is None else _repeat(full_audio),
        )  # fmt: skip
        if self.vocoder is None or batch_idx >= self.restore_items:
            return terms, count
        return {**terms, **self._restore_first(batch, batch_idx, stage)}, count

    def _restore_first(self, batch: Batch, batch_idx: int, stage: str) -> dict[str, float]:
        """Restore the first clip of a batch, and keep its sounds and spectra."""
        restorer: Any = self.inference(restore=replace(self.restore, sampler=self.validation_sampler))
        samples = int(batch["samples"][0]) if "samples" in batch else None
        high, low = (batch[key][0, 0, :samples].float().cpu() for key in ("high", "low"))
        cutoff_hz = float(batch["cutoff_hz"][0])
        signals, values = restorer.compare(high, low, cutoff_hz)

        def write_signals() -> None:
            for kind, audio in signals.items():
                self.write_media("audio", f"clip{batch_idx}_{kind}", audio, self.features.sample_rate)
            self.write_media("figure", f"clip{batch_idx}_spectra", restorer.plot(signals, cutoff_hz))

        self.log_media(stage, batch_idx, write_signals)
        return {name: value for name, value in values.items() if math.isfinite(value)}  # silence has no band below

    def _compute_terms(self, latent: Tensor, *inputs: Tensor | None) -> dict[str, Tensor]:
        """Compute means of the terms over the items, and their weighted sum as `loss`."""
        objective = self._replicas[0] if self._replicas and self.training else self._objective()
        terms = {name: each.sum() / len(latent) for name, each in objective(latent, *inputs).items()}
        return {"loss": weighted_sum(terms, self.losses), **terms}

    def _objective(self) -> Objective:
        return Objective(self.net, self.diffusion, self.losses, self.autoencoder, self.features, self.vocoder)

    def _latent_shape(self, batch: Batch) -> Sequence[int]:
        """Shape of an item's latents."""
        multiple, factor = self.autoencoder.factor * self.net.unet.factor, self.autoencoder.factor
        frames = self.features.frames(batch["high"].shape[-1]) // multiple * multiple
        return self.autoencoder.latent_channels, frames // factor, self.features.n_mels // factor

    def _validation_noise(self, batch: Batch, items: Iterable[int]) -> Tensor:
        """Sample the noise of items by their numbers, the same in every validation."""
        seeds = [item_seed(self.restore.seed, _NO_EPOCH, item) for item in items]
        return next(row_noise(seeds, self._latent_shape(batch)))

    def _evaluation_noise(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the noise of a batch on the device; that of its position where items have no number."""
        count = len(batch["high"])
        first = (batch_idx * self.trainer.world_size + self.trainer.global_rank) * count
        noise = batch["noise"] if "noise" in batch else self._validation_noise(batch, range(first, first + count))
        return noise.to(batch["high"].device)

    @torch.no_grad()
    def _mels(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-mels of target and input, cropped to what the nets can halve."""
        multiple = self.autoencoder.factor * self.net.unet.factor
        high, low = (crop_to_multiple(self.features(batch[key]), multiple) for key in ("high", "low"))
        return high, low

    @torch.no_grad()
    def _moments(self, mel: Tensor) -> Tensor:
        return self.autoencoder.encode(mel).float()

    def _full_audio(self, high: Tensor, low: Tensor) -> Tensor | None:
        """Input of the global encoder."""
        if self.net.global_encoder is None:
            return None
        return high if self.condition.global_input == "target" else low

    def _measure_scale(self) -> Tensor:
        """1 / standard deviation of the latents of the first batch, over all ranks."""
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, ZooDataModule):
            raise ValueError("latent_scale: auto needs a datamodule of the zoo; give a number")
        keys = next(iter(data.train_batches(self.trainer.global_rank, self.trainer.world_size)))
        batch = data.collate([data.train_set[key] for key in keys])
        high = self.features(batch["high"].to(self.device))
        moments = self._moments(crop_to_multiple(high, self.autoencoder.factor))
        seeds = [item_seed(self.restore.seed, _NO_EPOCH, key[1]) for key in keys]
        noise = next(row_noise(seeds, posterior_mean(moments).shape[1:], moments.device))
        latent = sample_posterior(moments, noise).double()
        means = WeightedMeans()
        means.add({"mean": latent.mean(), "square": latent.square().mean()}, latent.numel())
        values = means.compute()
        return torch.tensor((values["square"] - values["mean"] ** 2) ** -0.5)


def _repeat(rows: Tensor) -> Tensor:
    """Repeat each row for each diffusion step of validation."""
    return rows.repeat_interleave(VALIDATION_TIMES, dim=0)
