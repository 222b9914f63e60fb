"""Training of conditional flows on feature sequences: degraded to clean mels, or degraded to clean features."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from zoo.audio.analysis.griffin_lim import griffin_lim
from zoo.audio.analysis.mel import LogMel
from zoo.common.ranges import one_of, within
from zoo.common.report import new_figure
from zoo.flow.process.guidance import Guidance
from zoo.flow.process.paths import PREDICTIONS, AffinePath, Prediction
from zoo.flow.process.solvers import Solver
from zoo.flow.process.time_samplers import TimeSampler, at_evaluation_times, seeded_draws
from zoo.flow.sequence.net import Normaliser, SequenceNet, valid_frames
from zoo.training.callbacks.media import log_audio, log_figure
from zoo.training.task import OptimizerCallable, SingleOptimizerTask

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEL_SETTINGS = ("sample_rate", "n_fft", "hop_length", "win_length", "n_mels", "f_min", "f_max")


class SequenceTask(SingleOptimizerTask):
    """Conditional flow matching of sequences: noise becomes the clean sequence, given the degraded one.

    Noise, time and condition drop of an item come from its seed. Before the first step the normaliser takes its
    statistics from the training set, unless a checkpoint or `init_from` brought them.

    Validation restores whole items: `l1`, in units of the features, with the solver, guidance and temperature of
    inference; `l1_one_step`, the same in one Euler step; `identity_l1`, leaving the degraded sequence as it is.

    Args:
        net: predicts from a point, its time and the condition.
        path: from noise to data, which fixes the target at each time.
        times: how the times of training are drawn.
        normaliser: the scale that the net works on.
        mel: front end for audio at inference, equal to the data's; null for other features.
        condition_drop: probability that an item is trained without its condition, for guidance.
        prediction: what the net predicts: "velocity", "x1" or "noise".
        solver: how the trained net is integrated; null for 8 Euler steps. An option of inference, like the following.
        guidance: null for the conditional field.
        temperature: standard deviation of the noise that inference starts from; 0 for a deterministic restoration.
        seed: of that noise.
        chunk_frames: long files are restored in pieces of this length.
        overlap_frames: of neighbouring pieces.
        chunk_batch: pieces restored at once.

    Source: Lipman et al., "Flow Matching for Generative Modeling" (2023), equation 9; masked loss as in Mehta et al.,
    "Matcha-TTS" (2024).
    """

    inference_class = "zoo.flow.SequenceRestorer"
    inference_parts = ("net", "path", "normaliser", "mel", "prediction")

    def __init__(
        self,
        net: SequenceNet,
        path: AffinePath,
        times: TimeSampler,
        normaliser: Normaliser,
        optimizer: OptimizerCallable,
        *,
        mel: LogMel | None = None,
        condition_drop: float = 0.1,
        prediction: Prediction = "velocity",
        solver: Solver | None = None,
        guidance: Guidance | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        chunk_frames: int = 1024,
        overlap_frames: int = 128,
        chunk_batch: int = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(optimizer, **kwargs)
        within(0, 1, condition_drop=condition_drop)
        one_of(PREDICTIONS, prediction=prediction)
        if guidance is not None and not condition_drop:
            raise ValueError(
                "model.guidance needs a condition_drop: without it the branch without condition is untrained"
            )
        self.net = net
        self.path = path
        self.times = times
        self.normaliser = normaliser
        self.mel = mel
        self.condition_drop = condition_drop
        self.prediction: Prediction = prediction
        self.keep_options(locals())
        self.inference()  # refuses parts and options that do not fit each other

    def setup(self, stage: str) -> None:
        """Compare the data's mel with the one of inference."""
        theirs = getattr(getattr(self.trainer, "datamodule", None), "mel", None)
        if self.mel is not None and theirs is not None:
            for key in MEL_SETTINGS:
                if getattr(theirs, key) != getattr(self.mel, key):
                    raise ValueError(
                        f"data.init_args.mel has {key} {getattr(theirs, key)}, model.init_args.mel has "
                        f"{getattr(self.mel, key)}: they must be equal"
                    )
        super().setup(stage)

    def on_fit_start(self) -> None:
        """Take the statistics of the features once; a resume and `init_from` bring their own."""
        super().on_fit_start()
        if not self.normaliser.is_fitted:
            self.normaliser.fit(self.trainer.datamodule.examples())  # type: ignore[attr-defined]

    def loss(
        self, x1: Tensor, x0: Tensor, t: Tensor, condition: Tensor, lengths: Tensor, given: Tensor | None = None
    ) -> Tensor:
        """Mean squared error over the valid frames of all items together, of normalised sequences and conditions.

        Conditions are dropped where `given` (B,) is 0.
        """
        output = self.net(self.path.sample(x0, x1, t), t, condition, lengths, given)
        target = self.path.target(x0, x1, t, self.prediction)
        return masked_mean((output - target).float().square(), lengths)

    def drawn(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add times `t` (B,) and `given` (B,), 0 where the condition is dropped."""
        if "t" in batch:
            return batch
        t, given = seeded_draws(self.times, self.condition_drop, batch["seeds"])
        return {**batch, "t": t, "given": given}

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """The loss at one time per item of a batch as `SequenceData` gives it, some conditions dropped."""
        batch = self.drawn(batch)
        x1, condition = self._normalised(batch)
        loss = self.loss(x1, batch["x0"], batch["t"].to(x1), condition, batch["lengths"], batch["given"])
        self.log_terms("train", {"loss": loss}, batch_size=len(x1))
        return loss

    def evaluate(self, batch: dict[str, Any], batch_idx: int, stage: str) -> tuple[Mapping[str, Tensor | float], int]:
        """The loss at ten times from 0.05 to 0.95 of each item's own noise, and what restoring leaves of the error."""
        x1, condition = self._normalised(batch)
        lengths, count = batch["lengths"], len(x1)
        clean, noise, degraded, frames, t = at_evaluation_times(x1, batch["x0"], condition, lengths)
        terms = {"loss": self.loss(clean, noise, t, degraded, frames)}
        restorer: Any = self.inference()
        for name, solver in (("l1", None), ("l1_one_step", Solver(steps=1))):
            restored = restorer.restore(batch["condition"], lengths, batch["x0"], solver)
            terms[name] = masked_mean((restored - batch["x1"]).abs(), lengths)
        if batch["condition"].shape == batch["x1"].shape:
            terms["identity_l1"] = masked_mean((batch["condition"] - batch["x1"]).abs(), lengths)
        return terms, count

    def draw_samples(self, batches: list[Any], last: bool) -> None:
        """Show degraded, restored and clean sequences, those of a mel as audio of the Griffin-Lim algorithm, too."""
        restorer: Any = self.inference()
        index = 0
        for batch in batches:
            with self.trainer.precision_plugin.val_step_context():
                restored = restorer.restore(batch["condition"], batch["lengths"], batch["x0"])
            for row, frames in enumerate(batch["lengths"][: self.sample_settings.items - index].tolist()):
                shown = {
                    title: values[row, :, :frames].float()
                    for title, values in (("input", batch["condition"]), ("result", restored), ("target", batch["x1"]))
                }
                log_figure(self, f"val/sequence_{index}", _figure(shown))
                if self.mel is not None:
                    for title, audio in zip(shown, griffin_lim(torch.stack([*shown.values()]), self.mel), strict=True):
                        log_audio(self, f"val/{title}_{index}", audio, self.mel.sample_rate)
                index += 1

    def _normalised(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        return self.normaliser.normalise(batch["x1"]), self.normaliser.normalise_condition(batch["condition"])


def _figure(sequences: Mapping[str, Tensor]) -> Figure:
    """Sequences (C, T) below one another, on one scale where they have as many channels."""
    figure = new_figure(8.0, 0.4 + 2.2 * len(sequences))
    target = sequences["target"]
    for axes, (title, values) in zip(figure.subplots(len(sequences), 1), sequences.items(), strict=True):
        limits = {"vmin": float(target.min()), "vmax": float(target.max())} if len(values) == len(target) else {}
        drawn = axes.imshow(values.cpu().numpy(), origin="lower", aspect="auto", cmap="magma", **limits)
        axes.set(title=title, ylabel="channel")
        figure.colorbar(drawn, ax=axes)
    axes.set_xlabel("frame")
    return figure


def masked_mean(values: Tensor, lengths: Tensor) -> Tensor:
    """Mean of (B, C, T) over the frames within the lengths (B,) of all items together."""
    mask = valid_frames(lengths, values.shape[2])[:, None]
    return (values * mask).sum() / (mask.sum() * values.shape[1])
