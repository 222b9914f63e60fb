"""Sounds, pictures and tables of a validation: files in the run folder, and a copy for every logger that shows them.

Every rank calls these functions with the name that a sample has in every validation, such as `val/samples`; rank zero
writes `media/step_XXXXXXXX/<name>.<suffix>`. Nothing happens in a shortened sanity check. Wrong shapes are a
ValueError; a logger that fails is reported once.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lightning as L
import numpy as np
from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger
from torch import Tensor

from zoo.common.atomic_files import write_atomic
from zoo.common.reports import csv_table, encode_gif, markdown_table, new_figure, to_numpy
from zoo.runs.run_folder import MEDIA_NAME, run_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)
_warn_once = functools.cache(log.warning)

Call = tuple[str, dict[str, Any]]  # a method and its arguments


def log_audio(task: L.LightningModule, name: str, audio: Tensor | np.ndarray, sample_rate: int) -> None:
    """Write and log a sound, (T,) floats in [-1, 1] at `sample_rate` Hz, as wav.

    Leading axes of size 1 are dropped; values that are not finite become silence.
    """
    import soundfile

    samples = np.asarray(to_numpy(audio), dtype=np.float32)
    if samples.size == 0 or samples.shape[-1:] != (samples.size,):
        raise ValueError(f"log_audio({name!r}): expected audio of shape (T,), T >= 1, found {tuple(samples.shape)}")
    samples = np.clip(np.nan_to_num(samples.reshape(-1), nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)
    file, board = BytesIO(), {"snd_tensor": samples[None], "sample_rate": sample_rate}
    soundfile.write(file, samples, sample_rate, "PCM_16", format="WAV")
    _write_and_log(task, name, ".wav", file.getvalue(), ("log_audio", {}), ("add_audio", board))


def log_image(task: L.LightningModule, name: str, image: Tensor | np.ndarray) -> None:
    """Write and log a picture as png: (H, W), (H, W, C) or (C, H, W), C of 1, 3 or 4; uint8, or floats in [0, 1]."""
    from PIL import Image

    pixels, file = _to_pixels(name, to_numpy(image)), BytesIO()
    if media_dir(task) is not None:
        Image.fromarray(pixels).save(file, format="PNG")
        _write_and_log(task, name, ".png", file.getvalue(), ("log_image", {}), _as_image(pixels))


def log_figure(task: L.LightningModule, name: str, figure: Figure) -> None:
    """Write and log a matplotlib figure as a picture."""
    if media_dir(task) is None:
        return
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    log_image(task, name, np.asarray(canvas.buffer_rgba())[..., :3])


def log_matrices(task: L.LightningModule, name: str, matrices: Mapping[str, Tensor | np.ndarray]) -> None:
    """Plot matrices (rows, columns) by title, below one another on the scale of the first, row 0 at the bottom."""
    if media_dir(task) is None:
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


def log_animation(task: L.LightningModule, name: str, frames: Any, fps: float = 8.0) -> None:
    """Write and log pictures, as those of `log_image`, as an animated gif; TensorBoard shows the last one."""
    if media_dir(task) is None:
        return
    pictures = [_to_pixels(name, to_numpy(frame)) for frame in frames]
    if not pictures:
        raise ValueError(f"log_animation({name!r}): expected at least one frame")
    content = encode_gif(np.stack(pictures), fps)
    _write_and_log(task, name, ".gif", content, ("log_video", {"format": ["gif"]}), _as_image(pictures[-1]))


def log_table(task: L.LightningModule, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Write and log a table of texts, numbers or truth values, as csv."""
    if any(len(row) != len(columns) for row in rows):
        raise ValueError(f"log_table({name!r}): expected {len(columns)} cells in every row")
    content = csv_table(columns, [dict(zip(columns, row, strict=True)) for row in rows])
    table = {"columns": list(columns), "data": [*map(list, rows)]}
    board = {"text_string": markdown_table(columns, rows)}
    _write_and_log(task, name, ".csv", content, ("log_table", table), ("add_text", board))


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


def _as_image(pixels: np.ndarray) -> Call:
    return "add_image", {"img_tensor": pixels, "dataformats": "HW" if pixels.ndim == 2 else "HWC"}


def is_shortened(trainer: L.Trainer) -> bool:
    """Return whether this is a sanity check of a part of the validation."""
    return trainer.sanity_checking and not math.isinf(float(trainer.num_sanity_val_steps))


def media_dir(task: L.LightningModule) -> Path | None:
    """Return this step's media folder, or None when this rank or this moment writes nothing."""
    trainer = task.trainer
    folder = run_folder(trainer) / MEDIA_NAME  # before the rank check: the first call is collective
    writes = trainer.is_global_zero and not is_shortened(trainer)
    return folder / f"step_{trainer.global_step:08d}" if writes else None


def _write_and_log(task: L.LightningModule, name: str, suffix: str, content: bytes, wandb: Call, board: Call) -> None:
    """Write the file, then pass it to each logger: W&B's and TensorBoard's by their calls; one that fails is named."""
    folder, trainer = media_dir(task), task.trainer
    if folder is None:
        return
    path = folder / ((re.sub(r"[^\w.-]+", "_", name).strip("._") or "unnamed") + suffix)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda file: file.write(content))
    step = trainer.fit_loop.epoch_loop._batches_that_stepped  # that of this validation's metrics
    for logger in trainer.loggers:
        try:
            if isinstance(logger, WandbLogger):
                paths = () if "data" in wandb[1] else ([str(path)],)
                getattr(logger, wandb[0])(name, *paths, step=step, **wandb[1])
            elif isinstance(logger, TensorBoardLogger):
                getattr(logger.experiment, board[0])(name, global_step=step, **board[1])
            elif isinstance(logger, MLFlowLogger):
                logger.experiment.log_artifact(logger.run_id, str(path), f"media/{folder.name}")
        except Exception as error:  # whatever a third party's logger raises must not end a training
            _warn_once(f"{type(logger).__name__} takes no {suffix} files ({error}); they are in {folder.parent}")
