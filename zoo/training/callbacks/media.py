"""Sounds, pictures and tables of a validation: files in the run folder, and a copy for every logger that shows them."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import lightning as L
import numpy as np
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from torch import Tensor

from zoo.common.atomic_files import write_atomic
from zoo.common.reports import csv_table, encode_gif, markdown_table, to_numpy
from zoo.runs.run_folder import run_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)


def log_audio(task: L.LightningModule, name: str, audio: Tensor | np.ndarray, sample_rate: int) -> None:
    """Write a sound of this step as `media/step_XXXXXXXX/<name>.wav` and log it.

    Call it on every rank; rank zero writes. Nothing happens in a shortened sanity check. A logger that fails, or a
    full disk, is reported once and costs nothing but the sound.

    Args:
        name: what it is, e.g. `val/generated_0`; the same in every validation.
        audio: (T,) floats in [-1, 1]; leading axes of size 1 are dropped, values that are not finite become silence.
        sample_rate: in Hz.

    Raises:
        ValueError: when the audio has more than one channel or no sample.
    """
    samples = np.asarray(to_numpy(audio), dtype=np.float32)
    if samples.size == 0 or samples.shape[-1:] != (samples.size,):
        raise ValueError(f"log_audio({name!r}): expected audio of shape (T,), T >= 1, found {tuple(samples.shape)}")
    samples = np.clip(np.nan_to_num(samples.reshape(-1), nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)

    def write(file: BinaryIO) -> None:
        import soundfile

        soundfile.write(file, samples, sample_rate, "PCM_16", format="WAV")

    _write_and_log(
        task, name, ".wav", write,
        lambda logger, path, step: logger.log_audio(name, [path], step=step),
        lambda writer, step: writer.add_audio(name, samples[None], step, sample_rate=sample_rate),
    )  # fmt: skip


def log_image(task: L.LightningModule, name: str, image: Tensor | np.ndarray) -> None:
    """Write a picture of this step as `media/step_XXXXXXXX/<name>.png` and log it; otherwise as `log_audio`.

    Args:
        name: what it is, e.g. `val/samples`.
        image: (H, W), (H, W, C) or (C, H, W) with C of 1, 3 or 4; uint8, or floats in [0, 1].

    Raises:
        ValueError: when the shape is none of these.
    """
    from PIL import Image

    pixels, file = _to_pixels(name, to_numpy(image)), BytesIO()
    if media_dir(task) is not None:
        Image.fromarray(pixels).save(file, format="PNG")
        _log_encoded(task, name, ".png", file.getvalue(), pixels, "log_image")


def log_figure(task: L.LightningModule, name: str, figure: Figure) -> None:
    """Log a matplotlib figure as an image, as `log_image`."""
    if media_dir(task) is not None:
        log_image(task, name, figure_to_image(figure))


def figure_to_image(figure: Figure) -> np.ndarray:
    """Render a matplotlib figure without pyplot; returns (H, W, 3), uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def log_animation(
    task: L.LightningModule, name: str, frames: Tensor | np.ndarray | Sequence[np.ndarray], fps: float = 8.0
) -> None:
    """Write an animation of this step as `media/step_XXXXXXXX/<name>.gif` and log it; otherwise as `log_audio`.

    Args:
        name: what it is, e.g. `val/trajectory`.
        frames: (N, H, W), (N, H, W, 3) or (N, 3, H, W); uint8, or floats in [0, 1].
        fps: frames per second.

    Raises:
        ValueError: when the shape is none of these.
    """
    if media_dir(task) is None:
        return
    pictures = [_to_pixels(name, to_numpy(frame)) for frame in frames]
    if not pictures:
        raise ValueError(f"log_animation({name!r}): expected at least one frame")
    content = encode_gif(np.stack(pictures), fps)
    _log_encoded(task, name, ".gif", content, pictures[0], "log_video", format=["gif"])


def log_table(task: L.LightningModule, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write a table of this step as `media/step_XXXXXXXX/<name>.csv` and log it; otherwise as `log_audio`.

    Args:
        name: what it is, e.g. `val/answers`.
        rows: texts, numbers or truth values, as many in each row as there are columns.

    Raises:
        ValueError: when a row has another number of cells.
    """
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"log_table({name!r}): expected {len(columns)} cells in every row")
    content = csv_table(columns, [dict(zip(columns, row, strict=True)) for row in rows])
    texts = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    _write_and_log(
        task, name, ".csv", lambda file: file.write(content),
        lambda logger, path, step: logger.log_table(name, columns=list(columns), data=[*map(list, rows)], step=step),
        lambda writer, step: writer.add_text(name, markdown_table(columns, texts), step),
    )  # fmt: skip


def _to_pixels(name: str, image: np.ndarray) -> np.ndarray:
    """Return the image as (H, W, 3 or 4) or (H, W) uint8."""
    if image.ndim == 3 and image.shape[0] in (1, 3, 4) and image.shape[-1] not in (3, 4):
        image = image.transpose(1, 2, 0)
    if image.ndim == 3 and image.shape[-1] == 1:
        image = image[..., 0]
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[-1] not in (3, 4)) or image.size == 0:
        raise ValueError(f"log_image({name!r}): expected (H, W), (H, W, C) or (C, H, W), found {tuple(image.shape)}")
    if image.dtype == np.uint8:
        return image
    return np.rint(255.0 * np.clip(np.nan_to_num(image.astype(np.float32)), 0.0, 1.0)).astype(np.uint8)


def _log_encoded(
    task: L.LightningModule, name: str, suffix: str, content: bytes, pixels: np.ndarray, method: str, **options: Any
) -> None:
    """Log an encoded image or animation: by a method of W&B's logger; TensorBoard gets it as it is in the file."""

    def add(writer: Any, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        colours = 1 if pixels.ndim == 2 else pixels.shape[2]
        size = {"height": pixels.shape[0], "width": pixels.shape[1], "colorspace": colours}
        image = Summary.Image(encoded_image_string=content, **size)
        writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)

    def show(logger: Any, path: str, step: int) -> None:
        getattr(logger, method)(name, [path], step=step, **options)

    _write_and_log(task, name, suffix, lambda file: file.write(content), show, add)


def is_shortened(trainer: L.Trainer) -> bool:
    """Return whether this is a sanity check of a part of the validation."""
    return trainer.sanity_checking and not math.isinf(float(trainer.num_sanity_val_steps))


def media_dir(task: L.LightningModule) -> Path | None:
    """Return this step's media folder, or None when this rank or this moment writes nothing."""
    trainer = task.trainer
    folder = run_folder(trainer) / "media"  # before the rank check: the first call is collective
    writes = trainer.is_global_zero and not is_shortened(trainer)
    return folder / f"step_{trainer.global_step:08d}" if writes else None


def _write_and_log(
    task: L.LightningModule,
    name: str,
    suffix: str,
    write: Callable[[BinaryIO], object],
    show_in_wandb: Callable[[Any, str, int], object],
    add_to_tensorboard: Callable[[Any, int], object],
) -> None:
    """Write the file on rank zero, then pass it to each logger; one that fails is named once.

    Args:
        show_in_wandb: called with the logger, the file and the step.
        add_to_tensorboard: called with TensorBoard's writer and the step.
    """
    folder, trainer = media_dir(task), task.trainer
    if folder is None:
        return
    path = folder / ((re.sub(r"[^\w.-]+", "_", name).strip("._") or "unnamed") + suffix)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(path, write)
    except OSError as error:
        _warn_once("files", f"{path} cannot be written ({error}): sounds and pictures may be missing from now on")
        return
    step = trainer.fit_loop.epoch_loop._batches_that_stepped  # that of this validation's metrics
    for logger in trainer.loggers:
        try:
            if isinstance(logger, WandbLogger):
                show_in_wandb(logger, str(path), step)
            elif isinstance(logger, TensorBoardLogger):
                add_to_tensorboard(logger.experiment, step)
            elif isinstance(logger, MLFlowLogger):
                logger.experiment.log_artifact(logger.run_id, str(path), f"media/{folder.name}")
        except Exception as error:  # whatever a third party's logger raises must not end a training
            name = type(logger).__name__
            _warn_once(name, f"{name} could not take {path.name} ({error}); the file is in {folder}")


_warned: set[str] = set()


def _warn_once(about: str, message: str) -> None:
    if about not in _warned:
        _warned.add(about)
        log.warning(message)
