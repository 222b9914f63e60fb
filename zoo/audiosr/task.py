"""Training of the latent diffusion: clean latents from noise, beside the latents of the band-limited input."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor, nn

from zoo.audio.analysis.figures import plot_mels, plot_spectrograms
from zoo.audiosr.data.cutoff import CONFIDENCE
from zoo.audiosr.diffusion.samplers import DPMSolver, Sampler, conditioned, row_noise
from zoo.audiosr.diffusion.schedule import CosineDiffusion
from zoo.audiosr.losses import DiffusionTerm, Known, Objective, check_parts, checked, draws, replicated, weighted_sum
from zoo.audiosr.nets.denoiser import UNCONDITIONAL, Denoiser
from zoo.audiosr.nets.features import MelFeatures, whole_mel
from zoo.audiosr.nets.frozen import FrozenAutoencoder, FrozenVocoder
from zoo.blocks.autoencoder import posterior_mean, sample_posterior
from zoo.common.checks import check_one_of, check_within
from zoo.training.datamodule import ZooDataModule
from zoo.training.freezing import freeze
from zoo.training.resume import item_seed
from zoo.training.strategies.sharding import gather_weights
from zoo.training.task import CompileMode as CompileMode
from zoo.training.task import OptimizerCallable, SingleOptimizerTask, WeightedMeans, compile_module

Mode = Literal["full", "global_encoder", "unet_only"]
_ENCODER = "global_encoder"


def train_only(net: Denoiser, trains: Mode | Sequence[str]) -> dict[str, int]:
    """Freeze all groups of a denoiser but those that train; parts that are frozen as a whole go to evaluation mode.

    Args:
        net: in place.
        trains: "full": all of it; "global_encoder": the encoder alone; "unet_only": all but the encoder; or a list of
            names from `Denoiser.groups`.

    Returns:
        Number of weights in each group that trains.
    """
    groups = net.groups()
    if trains == "full":
        chosen = list(groups)
    elif trains == "global_encoder":
        chosen = [_ENCODER]
    elif trains == "unet_only":
        chosen = [name for name in groups if name != _ENCODER]
    elif isinstance(trains, str):
        raise ValueError(f"trains is one of {', '.join(get_args(Mode))}, or a list of groups; found {trains!r}")
    else:
        chosen = list(trains)
    unknown = [name for name in chosen if name not in groups]
    if unknown or not chosen:
        raise ValueError(f"trains: this net has the groups {', '.join(groups)}; found {', '.join(unknown) or 'none'}")
    parameters = dict(net.named_parameters())
    freeze(net, [name for group, names in groups.items() if group not in chosen for name in names])
    return {group: sum(parameters[name].numel() for name in groups[group]) for group in chosen}


log = logging.getLogger(__name__)

Batch = dict[str, Any]

VALIDATION_TIMES = 8
VALIDATION_STEPS = 8  # of the sampler, where the recipe names none
_NO_EPOCH = -1  # in the seeds of validation


class DiffusionTask(SingleOptimizerTask):
    """Stage 3: v-prediction (or noise) in the latents of a frozen autoencoder, conditioned on the input's latents.

    Diffusion step, noise and drop of the condition depend on `seed`, the number of the batch and the item's place in
    the batch of all processes: two processes with half the batch train like one, and a resume draws what it drew.

    Validation has no chance in it: each item at 8 diffusion steps from 1/16 to 15/16 with noise of its own. Its `loss`
    is the weighted sum of the terms there. With a vocoder the first `restore_items` clips are restored as well: `lsd`,
    `lsd_hf` (above the cut-off), `lsd_lf`, each also as `unprocessed_...` (the input as it is) and `ceiling_...` (the
    target through autoencoder and vocoder). The first `samples.items` of these are kept as sounds and spectra; where
    no clip is restored, mels of generated latents are drawn.

    Gradients that are accumulated when an epoch ends are stepped with then; Lightning divides them by
    `accumulate_grad_batches` all the same, so that this step is as much smaller.

    Args:
        net: UNet and, if there is one, global encoder.
        autoencoder: frozen; one instance for targets and conditions, unless there is a `condition_autoencoder`.
        features: audio to log-mels, equal to those of the autoencoder and the vocoder.
        diffusion: steps, noise schedule and what the net predicts.
        losses: terms by name, such as `latent`, `mel`, `stft`.
        vocoder: frozen, for sound in validation, losses on sound, and inference; null trains without.
        latent_scale: factor on latents; "auto" is 1 / standard deviation of those of the first batch, over all ranks.
            It is taken once and saved with the weights; weights that bring one keep theirs.
        condition_dropout: probability that an item is trained without its condition, for guidance.
        global_input: what the global encoder takes: "lowres", as in inference, or, as the original, the "target".
        trains: which parts train, see `zoo.audiosr.task.train_only`.
        parallel: "dp" spreads the loss over all GPUs of this process by `nn.DataParallel`, for machines without a
            collective back end; "none" leaves parallel work to the Trainer's strategy.
        restore_items: validation clips that are restored.
        restore_sampler: the sampler of that; 8 steps of DPM-Solver++ when null.
        sampler: from noise to latents, an option of inference, like the following; 100 steps of DDIM when null.
        guidance_scale: of the condition; 1 is half the work.
        guidance_rescale: share of the guided latents' deviation that is brought back to the conditional ones'.
        cutoff_hz: where an input's band ends; found in each when null. Validation takes the data's.
        chunk_seconds: length of a chunk; about that of the training crops is what the net knows.
        overlap_seconds: shared by neighbouring chunks, at most half a chunk.
        batch_size: chunks restored at once.
        input_lowpass_hz: first take away what the input has above this frequency.
        pictures: write `<name>.png` beside each file: its spectrogram before and after.
        cutoff_rule: how the cut-off is found: the steepest fall ("edge"), or the original's rule ("share").
        cutoff_confidence: of an edge that counts, 0 to 1.
        seed: of the noise, in training as in inference.
        condition_autoencoder: frozen; encodes the conditions where they were trained with another one than the
            targets, as in some of ProjectLily's files; null takes `autoencoder`.
        compile_mode: of torch.compile, with `compile`; where that fails the reason is logged and training goes on
            without.
        compile_fullgraph: refuse breaks of the graph.

    Source: Liu et al., "AudioSR" (2023), section 2; v: Salimans and Ho (2022).
    """

    inference_class = "zoo.audiosr.Restorer"
    inference_modules = ("net", "autoencoder", "vocoder", "features", "diffusion", "condition_autoencoder")
    fsdp_excluded_modules = ("autoencoder", "vocoder")  # decode the items of early diffusion steps alone
    seed: int
    guidance_scale: float
    guidance_rescale: float

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
        condition_dropout: float = 0.1,
        global_input: Literal["lowres", "target"] = "lowres",
        trains: Mode | list[str] = "full",
        parallel: Literal["none", "dp"] = "none",
        restore_items: int = 3,
        restore_sampler: Sampler | None = None,
        sampler: Sampler | None = None,
        guidance_scale: float = 3.5,
        guidance_rescale: float = 0.0,
        cutoff_hz: float | None = None,
        chunk_seconds: float = 10.24,
        overlap_seconds: float = 2.0,
        seed: int = 0,
        batch_size: int = 1,
        input_lowpass_hz: float | None = None,
        pictures: bool = True,
        condition_autoencoder: FrozenAutoencoder | None = None,
        cutoff_rule: Literal["edge", "share"] = "edge",
        cutoff_confidence: float = CONFIDENCE,
        compile_mode: CompileMode = "default",
        compile_fullgraph: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        check_parts(net, autoencoder, features, vocoder, condition_autoencoder)
        check_within(0, 1, condition_dropout=condition_dropout)
        check_one_of(("lowres", "target"), global_input=global_input)
        self.net = net
        self.autoencoder = autoencoder
        self.condition_autoencoder = condition_autoencoder
        self.features = features
        self.diffusion = diffusion
        self.vocoder = vocoder
        self.losses = checked({**losses})
        self.latent_scale = latent_scale
        if latent_scale != "auto":
            net.latent_scale.fill_(float(latent_scale))
        self.condition_dropout = condition_dropout
        self.global_input = global_input
        self.parallel = parallel
        self.restore_items = restore_items
        self.restore_sampler = restore_sampler or DPMSolver(VALIDATION_STEPS)
        self.store_options(locals())
        self.compile_options = (compile_mode, compile_fullgraph)
        for group, size in train_only(net, trains).items():
            log.info("trains: %s (%d weights)", group, size)
        self._frozen_modules = [module for module in net.modules() if not module.training]
        self._replicas: list[nn.Module] = []  # a list keeps it out of the state dict

    def train(self, mode: bool = True) -> Self:
        """Change the mode; frozen parts of the net stay in evaluation mode."""
        super().train(mode)
        if mode:
            for module in self._frozen_modules:
                module.training = False
        return self

    def on_fit_start(self) -> None:
        """Take the scale of the latents, unless weights brought one; replicate; compile."""
        if self.latent_scale == "auto" and float(self.net.latent_scale) == 1.0:
            with gather_weights(self.trainer):
                self.net.latent_scale.copy_(self._measured_scale())
            log.info("latent_scale: %.5f", float(self.net.latent_scale))
        if self.parallel == "dp":
            self._replicas = [replicated(self._objective(), self.device)]
        if self.compile_modules and any(isinstance(each, nn.DataParallel) for each in self._replicas):
            log.warning("compile: replicas of DataParallel cannot share compiled code; training goes on without")
        elif self.compile_modules:
            for module in (self.net.unet, self.net.global_encoder):
                if module is not None:
                    compile_module(module, *self.compile_options)

    def prepare_training_batch(self, batch: Batch) -> Batch:
        """Add what is random (`draws`), with the diffusion steps and places of crops that the host must know."""
        if "draws" in batch:
            return batch
        progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress
        number = progress.total.processed  # of the batches before this one, also while it is on its way to the device
        rank, world = self.trainer.global_rank, self.trainer.world_size
        rows = len(batch["high"])
        seeds = [item_seed(self.seed, number, row * world + rank) for row in range(rows)]
        drawn = draws(seeds, self._latent_shape(batch), self.diffusion.steps, self.condition_dropout)
        return {**batch, "draws": drawn, "known": list(zip(drawn.t.tolist(), drawn.place.tolist(), strict=True))}

    def prepare_evaluation_batch(self, batch: Batch) -> Batch:
        """Add the `noise` of items that have a number."""
        return {**batch, "noise": self._validation_noise(batch, batch["item"].tolist())} if "item" in batch else batch

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of `high` and `low` (B, 1, T) at one diffusion step per item, some conditions dropped."""
        batch = self.prepare_training_batch(batch)
        drawn = batch["draws"]
        encoded = self._encoded(batch)
        target, scale = encoded["target"], self.net.latent_scale
        condition = torch.where(drawn.kept[:, None, None, None], encoded["condition"], UNCONDITIONAL) * scale
        terms = self._compare(
            sample_posterior(target, drawn.posterior) * scale, condition, drawn.t, drawn.noise, drawn.place,
            encoded.get("clip"), known=batch["known"],
        )  # fmt: skip
        self.log_terms("train", terms, batch_size=len(target))
        return terms["loss"]

    def evaluate(self, batch: Batch, batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """The terms at fixed diffusion steps of each item's own noise, and what restoring the first clips gives."""
        high, low = self._mels(batch)
        count, device = len(high), high.device
        pairs = ((high, None), (low, self.condition_autoencoder))
        latent, condition = (posterior_mean(self._moments(mel, own)) * self.net.latent_scale for mel, own in pairs)
        first = (batch_idx * self.trainer.world_size + self.trainer.global_rank) * count
        noise = batch["noise"] if "noise" in batch else self._validation_noise(batch, range(first, first + count))
        times = (torch.arange(VALIDATION_TIMES, device=device) + 0.5) / VALIDATION_TIMES * self.diffusion.steps
        known = [(int((i + 0.5) / VALIDATION_TIMES * self.diffusion.steps), 0.5) for i in range(VALIDATION_TIMES)]
        full_audio = self._full_audio(high, low)
        place = torch.full((count * VALIDATION_TIMES,), 0.5, device=device)
        terms = self._compare(
            _repeated(latent), _repeated(condition), times.long().repeat(count), _repeated(noise.to(device)),
            place, None if full_audio is None else _repeated(full_audio), known=known * count,
        )  # fmt: skip
        if self.vocoder is not None and batch_idx < self.restore_items:
            restorer: Any = self.inference(sampler=self.restore_sampler)
            high, low = (batch[key][0, 0].float().cpu() for key in ("high", "low"))
            cutoff_hz = float(batch["cutoff_hz"][0])
            signals, values = restorer.compare(high, low, cutoff_hz)
            if self.should_log_media(stage, batch_idx):
                self.log_media(lambda: self._log_signals(f"clip{batch_idx}", signals, cutoff_hz))
            return {**terms, **values}, count
        return terms, count

    def _log_signals(self, name: str, signals: Mapping[str, Tensor], cutoff_hz: float) -> None:
        """Keep a restored clip, its input, target and ceiling as sounds, and the spectra of the first three."""
        rate = self.features.sample_rate
        for kind, audio in signals.items():
            self.write_media("audio", f"{name}_{kind}", audio, rate)
        shown = {kind: signals[kind] for kind in ("input", "restored", "target")}
        self.write_media("figure", f"{name}_spectra", plot_spectrograms(shown, rate, cutoff_hz))

    def log_samples(self, batches: list[Batch], last: bool) -> None:
        """Draw mels of generated latents where validation restores no clip, for want of a vocoder or of its choice."""
        if self.vocoder is not None and self.restore_items:
            return
        number, items = 0, self.sample_settings.items
        for batch in batches:
            kept = {key: value[: items - number] for key, value in batch.items() if isinstance(value, Tensor)}
            with self.trainer.precision_plugin.val_step_context():
                pairs = zip(*self._generated_mels(kept, number), strict=True)
            for target, generated in pairs:
                self.write_media("figure", f"clip{number}_mel", plot_mels(target[0].T, generated[0].T))
                number += 1

    def _generated_mels(self, batch: Batch, first: int) -> tuple[Tensor, Tensor]:
        """Log-mels of the targets, and those generated from the inputs by noise of their own."""
        high, low = self._mels(batch)
        scale = self.net.latent_scale
        condition = posterior_mean(self._moments(low, self.condition_autoencoder)) * scale
        full_audio = self._full_audio(high, low)
        encoded = None if full_audio is None else self.net.encode_clip(full_audio)
        predict = conditioned(self.net, condition, encoded, self.guidance_scale, self.guidance_rescale)
        seeds = [item_seed(self.sample_settings.seed, _NO_EPOCH, first + row) for row in range(len(high))]
        noises = row_noise(seeds, condition.shape[1:], condition.device)
        latent = self.restore_sampler.sample(predict, next(noises), self.diffusion, noises)
        return high, self.autoencoder.decode(latent / scale).float()

    def _compare(self, latent: Tensor, *others: Tensor | None, known: Known) -> dict[str, Tensor]:
        """Means of the terms over the items, and their weighted sum as `loss`."""
        objective = self._replicas[0] if self._replicas and self.training else self._objective()
        if isinstance(objective, nn.DataParallel):  # cuts tensors alone
            sums = objective(latent, *others)
        else:
            sums = objective(latent, *others, known=known)
        terms = {name: each.sum() / len(latent) for name, each in sums.items()}
        return {"loss": weighted_sum(terms, self.losses), **terms}

    def _objective(self) -> Objective:
        return Objective(self.net, self.diffusion, self.losses, self.autoencoder, self.features, self.vocoder)

    def _latent_shape(self, batch: Batch) -> Sequence[int]:
        """Shape of an item's latents."""
        multiple, factor = self.autoencoder.factor * self.net.unet.factor, self.autoencoder.factor
        frames = self.features.frames(batch["high"].shape[-1]) // multiple * multiple
        return self.autoencoder.latent_channels, frames // factor, self.features.n_mels // factor

    def _validation_noise(self, batch: Batch, items: Iterable[int]) -> Tensor:
        """Noise of the items with these numbers, the same in every validation."""
        return next(row_noise([item_seed(self.seed, _NO_EPOCH, item) for item in items], self._latent_shape(batch)))

    @torch.no_grad()
    def _mels(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Log-mels of target and input, cut to what the nets can halve."""
        multiple = self.autoencoder.factor * self.net.unet.factor
        return whole_mel(self.features(batch["high"]), multiple), whole_mel(self.features(batch["low"]), multiple)

    @torch.no_grad()
    def _moments(self, mel: Tensor, autoencoder: FrozenAutoencoder | None = None) -> Tensor:
        return (autoencoder or self.autoencoder).encode(mel).float()

    def _encoded(self, batch: Batch) -> dict[str, Tensor]:
        """Moments of the targets, latents of the conditions and, for a global encoder, its log-mels."""
        high, low = self._mels(batch)
        condition = posterior_mean(self._moments(low, self.condition_autoencoder))
        encoded = {"target": self._moments(high), "condition": condition}
        clip = self._full_audio(high, low)
        return encoded if clip is None else {**encoded, "clip": clip}

    def _full_audio(self, high: Tensor, low: Tensor) -> Tensor | None:
        """What the global encoder gets."""
        if self.net.global_encoder is None:
            return None
        return high if self.global_input == "target" else low

    def _measured_scale(self) -> Tensor:
        """1 / standard deviation of the latents of the first batch, over all ranks."""
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, ZooDataModule):
            raise ValueError("latent_scale: auto needs a datamodule of the zoo; give a number")
        keys = next(iter(data.train_batches(self.trainer.global_rank, self.trainer.world_size)))
        batch = data.collate([data.train_set[key] for key in keys])
        high = self.features(batch["high"].to(self.device))
        moments = self._moments(whole_mel(high, self.autoencoder.factor))
        seeds = [item_seed(self.seed, _NO_EPOCH, key[1]) for key in keys]
        latent = sample_posterior(
            moments, next(row_noise(seeds, posterior_mean(moments).shape[1:], moments.device))
        ).double()
        means = WeightedMeans()
        means.add({"mean": latent.mean(), "square": latent.square().mean()}, latent.numel())
        values = means.compute()
        return torch.tensor((values["square"] - values["mean"] ** 2) ** -0.5)


def _repeated(rows: Tensor) -> Tensor:
    """Each row once for each diffusion step of validation."""
    return rows.repeat_interleave(VALIDATION_TIMES, dim=0)
