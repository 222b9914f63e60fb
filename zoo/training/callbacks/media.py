"""Sounds, pictures and tables of a validation: files in the run folder, and a copy for every logger that shows them."""

from __future__ import annotations

import logging
import math
import re
import wave
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import lightning as L
import numpy as np
from torch import Tensor

from zoo.common.atomic_files import write_atomic
from zoo.common.reports import csv_table, encode_gif, markdown_table, new_figure, to_numpy
from zoo.runs.folder import run_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)


def log_audio(task: L.LightningModule, name: str, audio: Tensor | np.ndarray, sample_rate: int) -> None:
    """Keep a sound of this step as `media/step_XXXXXXXX/<name>.wav` and show it in the loggers.

    Call it on every rank; rank zero writes. Nothing happens in a shortened sanity check. A logger that fails, or a
    full disk, is reported once and costs nothing but the sound.

    Args:
        name: what it is, e.g. `val/generated_0`; the same in every validation.
        audio: (T,) floats in [-1, 1]; leading axes of size 1 are dropped, values that are not finite become silence.

    Raises:
        ValueError: when the audio has more than one channel or no sample.
    """
    samples = np.asarray(to_numpy(audio), dtype=np.float32)
    if samples.size == 0 or samples.shape[-1:] != (samples.size,):
        raise ValueError(f"log_audio({name!r}): expected audio of shape (T,), T >= 1, found {tuple(samples.shape)}")
    samples = np.clip(np.nan_to_num(samples.reshape(-1), nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)

    _keep(
        task,
        name,
        ".wav",
        lambda path: write_atomic(path, lambda file: _write_wav(file, samples, sample_rate)),
        lambda logger, path, step: logger.log_audio(name, [str(path)], step=step),
        lambda writer, step: writer.add_audio(name, samples[None], step, sample_rate=sample_rate),
    )


def _write_wav(file: BinaryIO, samples: np.ndarray, sample_rate: int) -> None:
    """Write audio (T,) in [-1, 1] as 16-bit wav."""
    with wave.open(file, "wb") as target:
        target.setparams((1, 2, sample_rate, 0, "NONE", ""))
        target.writeframes(np.rint(samples * 2.0**15).clip(-(2**15), 2**15 - 1).astype("<i2").tobytes())


def log_image(task: L.LightningModule, name: str, image: Tensor | np.ndarray) -> None:
    """Keep a picture of this step as `media/step_XXXXXXXX/<name>.png` and show it in the loggers.

    Call it on every rank; rank zero writes. Otherwise as `log_audio`.

    Args:
        name: what it is, e.g. `val/samples`.
        image: (H, W), (H, W, C) or (C, H, W) with C of 1, 3 or 4; uint8, or floats in [0, 1].

    Raises:
        ValueError: when the shape is none of these.
    """
    pixels = _pixels(name, to_numpy(image))
    if _folder(task) is None:
        return
    encoded = _png(pixels)
    _keep(
        task,
        name,
        ".png",
        lambda path: write_atomic(path, lambda file: file.write(encoded)),
        lambda logger, path, step: logger.log_image(name, [str(path)], step=step),
        lambda writer, step: _add_encoded(writer, name, encoded, pixels, step),
    )


def log_figure(task: L.LightningModule, name: str, figure: Figure) -> None:
    """Draw a matplotlib figure without pyplot and log it as an image.

    Call it on every rank; rank zero draws. Otherwise as `log_image`.

    Args:
        name: what it is, e.g. `val/mel_0`.
        figure: the figure, e.g. of `zoo.common.reports.new_figure`.
    """
    if _folder(task) is None:
        return
    log_image(task, name, rendered(figure))


def rendered(figure: Figure) -> np.ndarray:
    """A matplotlib figure as an image (H, W, 3), uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def log_matrices(task: L.LightningModule, name: str, matrices: Mapping[str, Tensor | np.ndarray]) -> None:
    """Draw matrices below one another on the scale of the first, row 0 at the bottom, and log the figure.

    Args:
        name: what they are, e.g. `val/mel_0`.
        matrices: by title, each (rows, columns).
    """
    if _folder(task) is None:
        return
    values = {title: to_numpy(matrix).astype(np.float32) for title, matrix in matrices.items()}
    first = next(iter(values.values()))
    figure = new_figure(8.0, 0.6 + 1.8 * len(values))
    panels = list(figure.subplots(len(values), 1, sharex=True, squeeze=False)[:, 0])
    for axes, (title, matrix) in zip(panels, values.items(), strict=True):
        limits = {"vmin": float(first.min()), "vmax": float(first.max())}
        image = axes.imshow(matrix, origin="lower", aspect="auto", cmap="magma", **limits)
        axes.set_title(title)
    figure.colorbar(image, ax=panels)
    log_figure(task, name, figure)


def log_animation(
    task: L.LightningModule, name: str, frames: Tensor | np.ndarray | Sequence[np.ndarray], fps: float = 8.0
) -> None:
    """Keep an animation of this step as `media/step_XXXXXXXX/<name>.gif` and show it in the loggers.

    Call it on every rank; rank zero writes. Otherwise as `log_audio`.

    Args:
        name: what it is, e.g. `val/trajectory`.
        frames: (N, H, W), (N, H, W, 3) or (N, 3, H, W); uint8, or floats in [0, 1].
        fps: frames per second.

    Raises:
        ValueError: when the shape is none of these.
    """
    if _folder(task) is None:
        return
    pictures = [_pixels(name, to_numpy(frame)) for frame in frames]
    if not pictures:
        raise ValueError(f"log_animation({name!r}): expected at least one frame")
    encoded = encode_gif(np.stack(pictures), fps)
    _keep(
        task,
        name,
        ".gif",
        lambda path: write_atomic(path, lambda file: file.write(encoded)),
        lambda logger, path, step: logger.log_video(name, [str(path)], step=step, format=["gif"]),
        lambda writer, step: _add_encoded(writer, name, encoded, pictures[0], step),
    )


def log_table(task: L.LightningModule, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Keep a table of this step as `media/step_XXXXXXXX/<name>.csv` and show it in the loggers.

    Call it on every rank; rank zero writes. Otherwise as `log_audio`.

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
    _keep(
        task,
        name,
        ".csv",
        lambda path: write_atomic(path, lambda file: file.write(content)),
        lambda logger, path, step: logger.log_table(name, columns=list(columns), data=[*map(list, rows)], step=step),
        lambda writer, step: writer.add_text(name, markdown_table(columns, texts), step),
    )


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


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    file = BytesIO()
    Image.fromarray(pixels).save(file, format="PNG")
    return file.getvalue()


def _add_encoded(writer: Any, name: str, encoded: bytes, pixels: np.ndarray, step: int) -> None:
    """Give TensorBoard an image or animation as it is in the file."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    colours = 1 if pixels.ndim == 2 else pixels.shape[2]
    image = Summary.Image(
        height=pixels.shape[0], width=pixels.shape[1], colorspace=colours, encoded_image_string=encoded
    )
    writer._get_file_writer().add_summary(Summary(value=[Summary.Value(tag=name, image=image)]), step)


def _folder(task: L.LightningModule) -> Path | None:
    """The run's media folder, or None when this rank or this moment writes nothing."""
    trainer = task.trainer
    folder = run_folder(trainer) / "media"  # before the rank check: the first call is collective
    shortened = trainer.sanity_checking and not math.isinf(float(trainer.num_sanity_val_steps))
    return folder if trainer.is_global_zero and not shortened else None


def _keep(
    task: L.LightningModule,
    name: str,
    suffix: str,
    write: Callable[[Path], object],
    on_wandb: Callable[[Any, Path, int], object],
    on_tensorboard: Callable[[Any, int], object],
) -> None:
    """Write the file on rank zero, then pass it to each logger; one that fails is named once.

    Args:
        on_wandb: shows it by a logger of that kind, given the file and the step.
        on_tensorboard: shows it by TensorBoard's writer, given the step.
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
            if hasattr(logger, "log_audio"):
                on_wandb(logger, path, step)
            elif hasattr(experiment, "add_audio"):
                on_tensorboard(experiment, step)
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
