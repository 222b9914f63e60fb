from functools import partial
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset
from toy_system.data import PairData, Pairs
from toy_system.nets import Gain
from toy_system.task import GainTask

from tests.harness import REPOSITORY, TOY, TOY_FIT
from tests.training.callbacks.parts import make_trainer
from zoo.cli.main import main
from zoo.cli.trainer import ZooCLI
from zoo.training.callbacks.checkpoint import Checkpoints
from zoo.training.datamodule import ZooDataModule
from zoo.training.resume import BucketBatchSampler


class Stream(IterableDataset):
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


class PositionedStream(Stream):
    def resume_at(self, epoch: int, batch: int) -> None:
        self.position = (epoch, batch)


def test_stream_needs_a_position() -> None:
    data = ZooDataModule(batch_size=2)
    data.train_set = Stream(range(10))
    with pytest.raises(ValueError, match="resume_at"):
        data.train_dataloader()
    data.train_set = PositionedStream(range(10))
    data.load_state_dict({"epoch": 2, "batch": 5})
    assert len(list(data.train_dataloader())) == 5
    assert data.train_set.position == (2, 5)


class StreamData(PairData):
    def setup(self, stage: str) -> None:
        super().setup(stage)
        self.train_set = PositionedStream([Pairs(6, 0)[item] for item in range(6)])


def test_position_at_the_end_of_a_streams_epoch_is_the_next_one(tmp_path: Path) -> None:
    positions = []

    class Positions(L.Callback):
        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            state = trainer.datamodule.state_dict()
            positions.append((trainer.global_step, state["epoch"], state["batch"]))

    task = GainTask(Gain(), partial(torch.optim.SGD, lr=0.01))
    saving = Checkpoints(every_n_steps=1), Positions()
    trainer = make_trainer(*saving, default_root_dir=tmp_path, enable_checkpointing=True, max_steps=5)
    trainer.fit(task, StreamData(batch_size=2))
    assert positions == [(1, 0, 1), (2, 0, 2), (3, 1, 0), (4, 1, 1), (5, 1, 2)]


def test_lengths_choose_buckets() -> None:
    data = PairData(items=20, batch_size=3)
    data.setup("fit")
    data.lengths = np.arange(20)
    data.load_state_dict({"epoch": 1, "batch": 2})
    loader = data.train_dataloader()
    assert isinstance(loader.batch_sampler, BucketBatchSampler) and len(list(loader)) == 4
    assert not isinstance(data.val_dataloader().batch_sampler, BucketBatchSampler)
    data.lengths = data.lengths[:5]
    with pytest.raises(ValueError, match="5 lengths for 20"):
        data.train_dataloader()


def test_resume_with_other_data_warns_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(TOY)
    fit = [*map(str, TOY_FIT), f"--trainer.default_root_dir={tmp_path}"]
    warnings = []
    size, items, limit = "data.batch_size=4", "data.items=50", "trainer.limit_train_batches=10"
    precision = "trainer.precision=bf16-mixed"
    for steps, changes in enumerate(
        [[], [size], [size, "data.num_workers=1"], [items], [items, limit], [items, limit, precision]], start=1
    ):
        resumed = ["--ckpt_path=last"] if steps > 1 else []
        caplog.clear()
        options = [f"--{change}" for change in changes]
        assert main([*fit, *resumed, *options, f"--trainer.max_steps={steps}"]) == 0
        warnings.append([each.getMessage() for each in caplog.records if each.getMessage().startswith("resumed with")])
    assert [len(lines) for lines in warnings] == [0, 1, 0, 1, 1, 1]
    assert "batch size 4 (was 2)" in warnings[1][0]
    assert "items 50 (was 40)" in warnings[3][0]
    assert "limit train batches 10 (was 1.0): steps see more or fewer items" in warnings[4][0]
    assert "precision bf16-mixed (was 32-true): steps see the same items" in warnings[5][0]


@pytest.mark.parametrize("recipe", ["flow/demo_swissroll", "hifigan/smoke", "ci_llm/smoke", "compressed_ad/smoke"])
def test_other_data_has_other_facts(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change = {"flow": "kind=moons", "hifigan": "corpus.embedded_utterances=7", "ci_llm": "max_items=20"}
    monkeypatch.chdir(tmp_path)

    def read_contents(*options: str) -> str:
        root = f"--trainer.default_root_dir={tmp_path}"
        cli = ZooCLI("fit", ["--config", str(REPOSITORY / "configs" / f"{recipe}.yaml"), root, *options])
        cli.datamodule.trainer = cli.trainer
        cli.datamodule.prepare_data()
        cli.datamodule.setup("fit")
        return str(cli.datamodule._data_facts()["contents"])

    contents = read_contents()
    assert read_contents("--data.init_args.num_workers=0", "--data.init_args.batch_size=3") == contents
    assert read_contents(f"--data.init_args.{change.get(recipe.split('/')[0], 'store.steps=20')}") != contents
