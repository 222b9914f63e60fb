"""What runs leave in media/: files of their kinds, also without items and from two ranks."""

from functools import partial
from pathlib import Path

import torch

from tests.compressed_ad.parts import policy
from tests.harness import REPOSITORY, forked_ranks, good
from tests.training.callbacks.parts import make_trainer
from zoo.compressed_ad import DistillationTask, Forget, HistoryData
from zoo.compressed_ad.data.datamodule import EvaluationOptions
from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.envs.grids import DarkKeyToDoor
from zoo.training.callbacks.samples import Samples

RECIPE = REPOSITORY / "configs" / "compressed_ad" / "smoke.yaml"
FIT = ("fit", "--config", RECIPE, "--trainer.max_steps=12", "--trainer.val_check_interval=6")
LEARNING, ATTENTION, RECONSTRUCTION = "val_learning.png", "val_attention.png", "val_reconstruction.png"
EPISODES = "val_episodes.gif"


def test_one_agent_is_shown_without_items(tmp_path: Path) -> None:
    env = DarkKeyToDoor(2, 5)
    net = policy(grid=2, window=10, compressor=Forget())
    task = DistillationTask(net, env, partial(torch.optim.Adam, lr=1e-3), episodes=2)
    trainer = make_trainer(
        Samples(items=1000, every_n_validations=1), default_root_dir=tmp_path, max_steps=2, val_check_interval=1,
        check_val_every_n_epoch=None, num_sanity_val_steps=0,
    )  # fmt: skip
    options = {"length": 24, "batch_size": 4, "epoch_items": 8, "evaluation": EvaluationOptions(0, 1, 1)}
    trainer.fit(task, HistoryData(env, demonstrator=EpsilonCurriculum(env, 5), **options))
    files = sorted((tmp_path / "media").glob("*/*"))
    assert [path.name for path in files] == [LEARNING, EPISODES, LEARNING]


def test_two_ranks_show_what_both_played(tmp_path: Path) -> None:
    options = ("--trainer.devices=2", "--trainer.strategy=ddp", "--data.init_args.evaluation.batch_size=5")
    for rank in forked_ranks(*FIT, *options, "--trainer.default_root_dir=two", cwd=tmp_path):
        good(rank)
    files = sorted((tmp_path / "two" / "media").glob("*/*"))
    every = [ATTENTION, LEARNING, RECONSTRUCTION]
    assert [path.name for path in files] == [*every, *sorted([*every, EPISODES])]
