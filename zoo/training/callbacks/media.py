"""Sounds and pictures of a validation: files in the run folder, and a copy for every logger that can show them."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import lightning as L
import numpy as np
from torch import Tensor

from zoo.audio.io import files
from zoo.common.atomic import write_atomic
from zoo.runs.folder import run_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import ArrayLike

log = logging.getLogger(__name__)

FIGURE_DPI = 100


def log_audio(task: L.LightningModule, name: str, audio: Tensor | np.ndarray, sample_rate: int) -> None:
    """Keep a sound of this step as `media/step_XXXXXXXX/<name>.wav` and show it in the loggers.

    Call it on every rank; rank zero writes. Nothing happens in a shortened sanity check. A logger that fails, or a
    full disk, is reported once and costs nothing but the sound.

    Args:
        name: what it is, e.g. `val/generated_0`; the same in every validation.
        audio: (T,) floats in [-1, 1]; leading axes of size 1 are dropped, values that are not finite become silence.
        sample_rate: in Hz.

    Raises:
        ValueError: when the audio has more than one channel or no sample.
    """
    samples = np.asarray(_array(audio), dtype=np.float32)
    if samples.size == 0 or samples.shape[-1:] != (samples.size,):
        raise ValueError(f"log_audio({name!r}): expected audio of shape (T,), T >= 1, found {tuple(samples.shape)}")
    samples = np.clip(np.nan_to_num(samples.reshape(-1), nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)

    options = {"sample_rate": sample_rate}
    _keep(task, name, "audio", ".wav", lambda path: files.write(path, samples, sample_rate), samples[None], options)


def log_image(task: L.LightningModule, name: str, image: Tensor | np.ndarray) -> None:
    """Keep a picture of this step as `media/step_XXXXXXXX/<name>.png` and show it in the loggers.

    Call it on every rank; rank zero writes. Otherwise as `log_audio`.

    Args:
        name: what it is, e.g. `val/samples`.
        image: (H, W), (H, W, C) or (C, H, W) with C of 1, 3 or 4; uint8, or floats in [0, 1].

    Raises:
        ValueError: when the shape is none of these.
    """
    pixels = _pixels(name, _array(image))

    options = {"dataformats": "HW" if pixels.ndim == 2 else "HWC"}
    _keep(task, name, "image", ".png", lambda path: write_atomic(path, partial(_save_png, pixels)), pixels, options)


def log_figure(task: L.LightningModule, name: str, figure: Figure) -> None:
    """Draw a matplotlib figure without pyplot and log it as an image.

    Call it on every rank; rank zero draws. Otherwise as `log_image`.

    Args:
        name: what it is, e.g. `val/mel_0`.
        figure: the figure, e.g. of `mel_figure`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    if _folder(task) is None:
        return
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    log_image(task, name, np.asarray(canvas.buffer_rgba())[..., :3].copy())


def mel_figure(target: Tensor | np.ndarray, prediction: Tensor | np.ndarray) -> Figure:
    """Draw a target log-mel, its prediction and their difference below one another.

    Args:
        target: (n_mels, F) log-mel.
        prediction: (n_mels, F'); both are cut to the shorter one.

    Returns:
        A figure of its own, known to no pyplot state, so nothing has to be closed.

    Raises:
        ValueError: when the shapes are not (n_mels, F) with the same n_mels.
    """
    from matplotlib.figure import Figure

    wanted, found = np.asarray(_array(target), np.float32), np.asarray(_array(prediction), np.float32)
    if wanted.ndim != 2 or found.ndim != 2 or len(wanted) != len(found):
        raise ValueError(f"mel_figure: expected two (n_mels, F) mels, found {wanted.shape} and {found.shape}")
    frames = min(wanted.shape[1], found.shape[1])
    wanted, found = wanted[:, :frames], found[:, :frames]
    low, high = (float(wanted.min()), float(wanted.max())) if wanted.size else (0.0, 1.0)
    reach = max(high - low, 1e-6) / 2  # half the target's range: a larger error is no better to look at
    figure = Figure(figsize=(8.0, 7.0), dpi=FIGURE_DPI, layout="constrained")
    panels = (
        ("target", wanted, "magma", low, high),
        ("prediction", found, "magma", low, high),
        ("prediction - target", found - wanted, "coolwarm", -reach, reach),
    )
    for axes, (title, values, colours, least, most) in zip(figure.subplots(3, 1, sharex=True), panels, strict=True):
        drawn = axes.imshow(values, origin="lower", aspect="auto", cmap=colours, vmin=least, vmax=most)
        axes.set(title=title, ylabel="mel band")
        figure.colorbar(drawn, ax=axes)
    axes.set_xlabel("frame")
    return figure


def _array(values: ArrayLike | Tensor) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values  # NumPy has no bfloat16
    return np.asarray(values)


def _pixels(name: str, image: np.ndarray) -> np.ndarray:
    """The image as (H, W, 3 or 4) or (H, W) uint8."""
    if image.ndim == 3 and image.shape[0] in (1, 3, 4) and image.shape[-1] not in (3, 4):
        image = image.transpose(1, 2, 0)
    if image.ndim == 3 and image.shape[-1] == 1:
        image = image[..., 0]
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[-1] not in (3, 4)) or image.size == 0:
        raise ValueError(
            f"log_image({name!r}): expected (H, W), (H, W, 3), (H, W, 4) or (C, H, W), found {tuple(image.shape)}"
        )
    if image.dtype == np.uint8:
        return image
    return np.rint(255.0 * np.clip(np.nan_to_num(image.astype(np.float32)), 0.0, 1.0)).astype(np.uint8)


def _save_png(pixels: np.ndarray, file: BinaryIO) -> None:
    from matplotlib.image import imsave

    imsave(file, pixels, format="png", cmap="gray", vmin=0, vmax=255)


def _folder(task: L.LightningModule) -> Path | None:
    """The run's media folder, or None when this rank or this moment writes nothing."""
    trainer = task.trainer
    folder = run_folder(trainer) / "media"  # before the rank is looked at: the first call is collective
    shortened = trainer.sanity_checking and not math.isinf(float(trainer.num_sanity_val_steps))
    return folder if trainer.is_global_zero and not shortened else None


def _keep(
    task: L.LightningModule,
    name: str,
    kind: str,
    suffix: str,
    write: Callable[[Path], object],
    value: np.ndarray,
    options: dict[str, Any],
) -> None:
    """Write the file on rank zero, then offer it to each logger; whoever cannot take it is named once.

    W&B's `log_<kind>` takes images as they are and other media as files, TensorBoard's `add_<kind>` takes arrays.
    """
    trainer, folder = task.trainer, _folder(task)
    if folder is None:
        return
    plain = re.sub(r"[^\w.-]+", "_", name).strip("._") or "unnamed"
    # the folder is named like this step's checkpoint, the logger gets the step that this validation's metrics get
    path = folder / f"step_{trainer.global_step:08d}" / f"{plain}{suffix}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        _warn_once("files", f"{path} cannot be written ({error}): sounds and pictures may be missing from now on")
        return
    step = trainer.fit_loop.epoch_loop._batches_that_stepped
    for logger in trainer.loggers:
        try:
            experiment: Any = getattr(logger, "experiment", None)
            if hasattr(logger, f"log_{kind}"):
                getattr(logger, f"log_{kind}")(name, [value if kind == "image" else str(path)], step=step)
            elif hasattr(experiment, f"add_{kind}"):
                getattr(experiment, f"add_{kind}")(name, value, step, **options)
            elif hasattr(experiment, "log_artifact") and hasattr(logger, "run_id"):
                experiment.log_artifact(logger.run_id, str(path), f"media/{path.parent.name}")
        except Exception as error:  # whatever a third party's logger raises must not end a training
            kind_of = type(logger).__name__
            _warn_once(kind_of, f"{kind_of} could not take {path.name} ({error}); the file is in {path.parent}")


_warned: set[str] = set()


def _warn_once(about: str, message: str) -> None:
    if about not in _warned:
        _warned.add(about)
        log.warning(message)
