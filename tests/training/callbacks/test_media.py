"""Sounds, pictures and tables: the files, and what loggers get."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from zoo.common.reports import new_figure
from zoo.training.callbacks import media

STEP = "media/step_00000012"


def make_task(folder, *loggers):
    trainer = SimpleNamespace(
        default_root_dir=str(folder),
        strategy=SimpleNamespace(broadcast=lambda value: value),
        is_global_zero=True,
        sanity_checking=False,
        global_step=12,
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=11)),
        loggers=list(loggers),
    )
    return SimpleNamespace(trainer=trainer)


def test_audio_is_written_clipped_and_finite(tmp_path):
    media.log_audio(make_task(tmp_path), "val/sample 0", torch.tensor([[[0.5, np.nan, np.inf, 9.0, -9.0]]]), 16000)
    samples, rate = soundfile.read(tmp_path / STEP / "val_sample_0.wav")
    assert rate == 16000 and [path.name for path in (tmp_path / STEP).iterdir()] == ["val_sample_0.wav"]
    np.testing.assert_allclose(samples, [0.5, 0, 0, 1, -1], atol=1e-4)


@pytest.mark.parametrize("name", ["../../x", "a/../b", "/etc/x", "..", "ä ö"])
def test_names_stay_in_the_folder(tmp_path, name):
    media.log_image(make_task(tmp_path), name, np.zeros((2, 2)))
    assert [path.parent for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / STEP]


def test_tensorboard_shows_everything(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="")
    task = make_task(tmp_path, logger)
    media.log_audio(task, "val/sound", np.zeros(50), 8000)
    media.log_figure(task, "val/figure", new_figure(2, 1))
    media.log_animation(task, "val/way", torch.rand(3, 1, 6, 7), fps=5)
    media.log_table(task, "val/answers", ["question", "right"], [["1 | 2\n3", True], ["ä", 0.5]])
    logger.experiment.close()
    with Image.open(tmp_path / STEP / "val_way.gif") as animation:
        assert (animation.n_frames, animation.size, animation.info["duration"]) == (3, (7, 6), 200)
    assert (tmp_path / STEP / "val_answers.csv").read_text() == 'question,right\n"1 | 2\n3",True\nä,0.5\n'
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    sound = events.Audio("val/sound")[0]
    assert (sound.step, sound.sample_rate, sound.length_frames) == (11, 8000.0, 50)
    assert sorted(events.Tags()["images"]) == ["val/figure", "val/way"]
    assert (events.Images("val/way")[0].width, events.Images("val/way")[0].height) == (7, 6)
    (text,) = events.Tensors("val/answers/text_summary")
    assert text.tensor_proto.string_val[0].decode().splitlines()[2:] == ["| 1 \\| 2 3 | True |", "| ä | 0.5 |"]
