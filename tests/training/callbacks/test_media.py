from __future__ import annotations

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.image import imread
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from zoo.audio.analysis.figures import plot_mels
from zoo.audio.io import files
from zoo.training.callbacks import media


class Strategy:
    def broadcast(self, value):
        return value


def make_task(folder, *loggers, zero=True, sanity=False, sanity_steps=2):
    trainer = SimpleNamespace(
        default_root_dir=str(folder),
        strategy=Strategy(),
        is_global_zero=zero,
        sanity_checking=sanity,
        num_sanity_val_steps=sanity_steps,
        global_step=12,
        fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(_batches_that_stepped=11)),
        loggers=list(loggers),
    )
    return SimpleNamespace(trainer=trainer)


@pytest.fixture(autouse=True)
def forget_warnings():
    media._warned.clear()


def test_audio_file(tmp_path):
    media.log_audio(make_task(tmp_path), "val/sample 0", 0.5 * torch.ones(1, 1, 100), 16000)
    path = tmp_path / "media" / "step_00000012" / "val_sample_0.wav"
    samples, rate = files.read(path)
    assert rate == 16000
    np.testing.assert_allclose(samples, 0.5 * np.ones((1, 100)), atol=1e-4)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_audio_of_a_broken_generator_is_silenced_and_clipped(tmp_path):
    media.log_audio(make_task(tmp_path), "x", np.array([np.nan, np.inf, 9.0, -9.0]), 8000)
    samples, _ = files.read(tmp_path / "media/step_00000012/x.wav")
    np.testing.assert_allclose(samples[0], [0, 0, 1, -1], atol=1e-4)


@pytest.mark.parametrize("shape", [(2, 100), (0,), ()])
def test_audio_shape_is_checked(tmp_path, shape):
    with pytest.raises(ValueError, match=r"log_audio\('x'\).*\(T,\)"):
        media.log_audio(make_task(tmp_path), "x", np.zeros(shape), 16000)


@pytest.mark.parametrize("name", ["../../x", "a/../b", "/etc/x", "..", "ä ö"])
def test_names_stay_in_the_folder(tmp_path, name):
    media.log_image(make_task(tmp_path), name, np.zeros((2, 2)))
    files_written = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files_written) == 1
    assert files_written[0].parent == tmp_path / "media" / "step_00000012"


@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.permute(2, 0, 1), lambda x: (255 * x).byte().numpy()])
def test_image_layouts(tmp_path, make):
    image = torch.zeros(5, 7, 3)
    image[1, 2, 0] = 1.0
    media.log_image(make_task(tmp_path), "x", make(image))
    found = imread(tmp_path / "media/step_00000012/x.png")
    np.testing.assert_array_equal(found[..., :3], image.numpy())


def test_grey_image(tmp_path):
    image = np.array([[0.0, 1.0], [0.5, 2.0]])
    media.log_image(make_task(tmp_path), "x", torch.tensor(image, dtype=torch.bfloat16)[None])
    found = imread(tmp_path / "media/step_00000012/x.png")
    np.testing.assert_allclose(found, np.minimum(image, 1), atol=1 / 255)


@pytest.mark.parametrize("shape", [(3,), (2, 5, 5), (1, 3, 4, 4), (0, 4)])
def test_image_shape_is_checked(tmp_path, shape):
    with pytest.raises(ValueError, match=r"log_image\('x'\): expected"):
        media.log_image(make_task(tmp_path), "x", np.zeros(shape))


def test_tensorboard_takes_audio_and_images(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="")
    task = make_task(tmp_path, logger)
    media.log_audio(task, "val/sound", np.zeros(50), 8000)
    media.log_image(task, "val/grey", np.zeros((4, 4)))
    media.log_figure(task, "val/mel", plot_mels(np.zeros((4, 9)), np.ones((4, 8))))
    logger.experiment.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert sorted(events.Tags()["images"]) == ["val/grey", "val/mel"]
    sound = events.Audio("val/sound")[0]
    assert (sound.step, sound.sample_rate, sound.length_frames) == (11, 8000.0, 50)


def test_tensorboard_takes_animations_and_tables(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="")
    task = make_task(tmp_path, logger)
    media.log_animation(task, "val/way", torch.rand(3, 1, 6, 7), fps=5)
    media.log_table(task, "val/answers", ["question", "right"], [["1 | 2\n3", True], ["ä", 0.5]])
    logger.experiment.close()
    folder = tmp_path / "media/step_00000012"
    with Image.open(folder / "val_way.gif") as animation:
        assert (animation.n_frames, animation.size, animation.info["duration"]) == (3, (7, 6), 200)
    assert (folder / "val_answers.csv").read_text() == 'question,right\n"1 | 2\n3",True\nä,0.5\n'
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert events.Images("val/way")[0].encoded_image_string == (folder / "val_way.gif").read_bytes()
    (text,) = events.Tensors("val/answers/text_summary")
    assert text.tensor_proto.string_val[0].decode().splitlines()[2:] == ["| 1 \\| 2 3 | True |", "| ä | 0.5 |"]


@pytest.mark.parametrize(("columns", "rows"), [(["a"], [[1, 2]]), (["a", "b"], [[1, 2], [1]])])
def test_table_cells_are_counted(tmp_path, columns, rows):
    with pytest.raises(ValueError, match=r"log_table\('x'\): expected"):
        media.log_table(make_task(tmp_path), "x", columns, rows)


@pytest.mark.parametrize("frames", [torch.zeros(0, 4, 4), torch.zeros(2, 5)])
def test_frames_are_checked(tmp_path, frames):
    with pytest.raises(ValueError, match="expected"):
        media.log_animation(make_task(tmp_path), "x", frames)


class LikeWandb:
    def __init__(self):
        self.calls = []

    def log_audio(self, key, audios, step=None):
        self.calls.append((key, audios, step))

    def log_image(self, key, images, step=None):
        self.calls.append((key, images, step))


class LikeMLflow:
    run_id = "r"

    def __init__(self):
        self.calls = []
        self.experiment = self

    def log_artifact(self, *args):
        self.calls.append(args)


class Failing:
    def log_audio(self, *args, **kwargs):
        raise ConnectionError("no network")


def test_other_loggers(tmp_path):
    wandb, mlflow = LikeWandb(), LikeMLflow()
    task = make_task(tmp_path, wandb, SimpleNamespace(), mlflow)
    media.log_audio(task, "a", np.zeros(5), 8000)
    media.log_image(task, "b", np.zeros((2, 3, 3)))
    folder = tmp_path / "media/step_00000012"
    assert wandb.calls == [("a", [str(folder / "a.wav")], 11), ("b", [str(folder / "b.png")], 11)]
    assert mlflow.calls == [("r", str(folder / name), "media/step_00000012") for name in ("a.wav", "b.png")]


def test_failing_logger_is_named_once_and_the_next_one_served(tmp_path, caplog):
    after = LikeWandb()
    task = make_task(tmp_path, Failing(), after)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            media.log_audio(task, "a", np.zeros(5), 8000)
    assert len(after.calls) == 3
    assert len(caplog.records) == 1
    assert "Failing" in caplog.text
    assert "no network" in caplog.text


def test_full_disk_costs_no_training(tmp_path, monkeypatch, caplog):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(media, "write_atomic", full)
    media.log_audio(make_task(tmp_path), "a", np.zeros(5), 8000)
    assert "No space left" in caplog.text


@pytest.mark.parametrize(
    ("settings", "written"),
    [({"zero": False}, 0), ({"sanity": True}, 0), ({"sanity": True, "sanity_steps": float("inf")}, 1)],
)
def test_when_it_writes(tmp_path, settings, written):
    task = make_task(tmp_path, **settings)
    media.log_audio(task, "a", np.zeros(5), 8000)
    assert len(list(tmp_path.rglob("*.wav"))) == written
    media.log_figure(task, "f", plot_mels(np.zeros((2, 3)), np.zeros((2, 3))))
    assert len(list(tmp_path.rglob("*.png"))) == written
