"""What runs leave in media/: files of their kinds, also with one item or one task, and no trace in the weights."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compressed_ad.parts import DIM, policy
from tests.harness import REPOSITORY, forked_ranks, good
from tests.training.callbacks.parts import make_trainer
from zoo.compressed_ad import DistillationTask, Env, FieldDecoder, Forget, HistoryData, PolicyTask, QueryCompressor
from zoo.compressed_ad.data.datamodule import EvaluationOptions
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.envs.grids import DarkKeyToDoor, Darkroom, DarkroomPermuted
from zoo.training.callbacks.samples import Samples

RECIPE = REPOSITORY / "configs" / "compressed_ad" / "smoke.yaml"
FIT = ("fit", "--config", RECIPE, "--trainer.max_steps=12", "--trainer.val_check_interval=6")
LEARNING, ATTENTION, RECONSTRUCTION = "val_learning.png", "val_attention.png", "val_reconstruction.png"
EPISODES = "val_episodes.gif"


def fit(task: PolicyTask, folder: Path, samples: Samples, **data: Any) -> dict[int, list[str]]:
    """Train two batches with a validation after each; returns the names of the media by step."""
    env = task.env
    evaluation = EvaluationOptions(**{"items": 4, "seeds": 1, **data.pop("evaluation", {})})
    settings = {"length": 24, "batch_size": 4, "epoch_items": 8, "evaluation": evaluation, **data}
    demonstrator = EpsilonCurriculum(env, -(-24 // env.horizon))
    trainer = make_trainer(
        samples, default_root_dir=folder, max_steps=2, val_check_interval=1, check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(task, HistoryData(env, demonstrator=demonstrator, **settings))
    steps = {int(path.parent.name.removeprefix("step_")) for path in folder.glob("media/*/*")}
    return {
        step: sorted(path.name for path in (folder / "media" / f"step_{step:08d}").iterdir()) for step in sorted(steps)
    }


def distillation(env: Env, recon_weight: float = 0.0, **parts: Any) -> DistillationTask:
    net = policy(grid=env.grid_size, window=10 if "compressor" in parts else 24, **parts)
    return DistillationTask(net, env, partial(torch.optim.Adam, lr=1e-3), episodes=2, recon_weight=recon_weight)


@pytest.mark.parametrize(
    ("env", "parts", "data", "displayed"),
    [
        (Darkroom(3, 4), {"compressor": Forget()}, {"items": 1}, [ATTENTION, LEARNING]),
        (
            Darkroom(3, 4, random_start=True),
            {"compressor": QueryCompressor(DIM, 2, 1, 2), "decoder": FieldDecoder(DIM, 3, heads=2)},
            {},
            [ATTENTION, LEARNING, RECONSTRUCTION],
        ),
        (DarkKeyToDoor(2, 5), {}, {"seeds": 0, "items": 1}, [ATTENTION]),
        (DarkroomPermuted(3, 5), {}, {"items": 0, "batch_size": 1}, [LEARNING]),
    ],
)
def test_distillation_shows_how_it_learns_and_attends(
    tmp_path: Path, env: Env, parts: dict[str, Any], data: dict[str, Any], displayed: list[str]
) -> None:
    task = distillation(env, recon_weight=0.1 if "decoder" in parts else 0.0, **parts)
    media = fit(task, tmp_path, Samples(items=1000, every_n_validations=1), evaluation=data)
    assert media == {1: displayed, 2: sorted([*displayed, EPISODES] if LEARNING in displayed else displayed)}


def test_two_ranks_show_what_both_played(tmp_path: Path) -> None:
    options = ("--trainer.devices=2", "--trainer.strategy=ddp", "--data.init_args.evaluation.batch_size=5")
    for rank in forked_ranks(*FIT, *options, "--trainer.default_root_dir=two", cwd=tmp_path):
        good(rank)
    files = sorted((tmp_path / "two" / "media").glob("*/*"))
    every = [ATTENTION, LEARNING, RECONSTRUCTION]
    assert [path.name for path in files] == [*every, *sorted([*every, EPISODES])]
