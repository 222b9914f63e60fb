"""What cannot be is refused by name, and nothing is written."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compressed_ad.envs.scripted import PACKAGE  # noqa: F401 - registers the environments
from tests.compressed_ad.parts import DIM, policy
from zoo.compressed_ad import (
    Agent,
    CategoricalHead,
    Darkroom,
    DistillationTask,
    EpsilonCurriculum,
    FieldDecoder,
    GymnasiumEnv,
    HistoryData,
    PointMass,
)
from zoo.compressed_ad.collecting.base import Algorithm
from zoo.compressed_ad.collecting.collect import EpsilonAlgorithm, collect
from zoo.compressed_ad.collecting.q_learning import QLearning
from zoo.compressed_ad.data.curriculum import Curriculum
from zoo.compressed_ad.data.windows import DemonstratedSource, HistoryWindows, WindowOptions
from zoo.compressed_ad.envs.base import Env
from zoo.compressed_ad.nets.embedding import check_rewards
from zoo.compressed_ad.rollout import rollout

ENV = Darkroom(3, 4)
CORRIDOR = GymnasiumEnv("Corridor-v0", [{"mirrored": False}, {"mirrored": True}], reward=[0, 1])
COLOURED = GymnasiumEnv("Corridor-v0", [{}, *({"colour": number} for number in range(5))])  # tasks that cannot be made


def gather(folder: Path, env: Env, algorithm: Algorithm, steps: int | None = None) -> None:
    collect(env, folder, algorithm, episodes=4, streams=6, steps=steps, progress=False)


def data(**arguments: Any) -> None:
    HistoryData(ENV, batch_size=4, **{"demonstrator": EpsilonCurriculum(ENV, 6), **arguments}).setup("fit")


def curriculum(**changes: Any) -> Curriculum:
    sound = {"window": 12, "num_latents": 3, "starts": [0], "max_compressions": [1], "shares": [[1.0]]}
    return Curriculum(**{**sound, **changes})


def windows(*arguments: Any, **options: Any) -> None:
    moving = DemonstratedSource(EpsilonCurriculum(Darkroom(3, 4, random_start=True), 6), ENV.tasks())
    HistoryWindows(moving, *arguments, options=WindowOptions(**options))


def task(grid: int = 3, **how: Any) -> None:
    DistillationTask(policy(2, grid, 10, **how), ENV, partial(torch.optim.Adam, lr=1e-3))


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda folder: gather(folder, ENV, EpsilonAlgorithm(), 21), "give a multiple"),
        (lambda folder: gather(folder, CORRIDOR, EpsilonAlgorithm()), "--epsilon.demonstrator"),
        (lambda folder: gather(folder, COLOURED, QLearning()), "colour"),
        (lambda folder: gather(folder, PointMass(8, 6), QLearning()), "q_learning learns Discrete"),
        (lambda _: curriculum(starts=[1]), "starts rise from 0"),
        (lambda _: curriculum(shares=[[0.5, 0.4]]), "sum to 1"),
        (lambda _: curriculum(num_latents=11), "window is at least 13"),
        (lambda _: data(demonstrator=None), "root and demonstrator"),
        (lambda _: data(demonstrator=EpsilonCurriculum(Darkroom(5, 4), 3)), "the demonstrator's is"),
        (lambda _: data(curriculum=curriculum(), windows=WindowOptions("every")), "offset"),
        (lambda _: data(train_share=1.0), "both sides must have tasks"),
        (lambda _: windows(25), "histories have 1 to 24 steps"),
        (lambda _: windows(5, 8, offset="every"), "epoch_items"),
        (lambda _: windows(4, offset="random", mix_tasks=True), "offset"),
        (lambda _: windows(terminal_next_state="reset"), "random_start"),
        (lambda _: task(latent_mask="full", arrangement="separate"), "latent_mask"),
        (lambda _: task(grid=5), "the policy's observation is"),
        (lambda _: task(decoder=FieldDecoder(DIM, 4, heads=2)), "the policy's observation is"),
        (lambda _: policy(decoder=FieldDecoder(32, heads=2)), "FieldDecoder has 32"),
        (lambda _: CategoricalHead(DIM, 7).check(Darkroom()), "the policy's action is"),
        (lambda _: check_rewards(PointMass()), "a table has 0 and 1 alone"),
        (lambda _: rollout(policy(), Darkroom(5, 4), torch.tensor([[0, 1]]), [2**64], 1), "seed"),
        (lambda _: Agent(policy(), Darkroom(5, 4))([[0.5, 1.0]], [0], 1), "integers"),
    ],
)
def test_refused(call: Any, key: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=key):
        call(tmp_path / "out")
    assert not (tmp_path / "out").exists()
