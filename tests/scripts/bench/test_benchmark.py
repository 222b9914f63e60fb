from types import SimpleNamespace

import lightning as L
import torch
from torch.utils.data import TensorDataset

from scripts.bench import tools as benchmark
from scripts.bench.tools import Cost
from tests.training.callbacks.parts import make_trainer
from zoo.training.callbacks.checkpoint import Checkpoints


def test_ratio_is_the_median_of_neighbours_not_the_ratio_of_medians():
    one, other = [Cost(2, 20), Cost(9, 90), Cost(30, 10)], [Cost(1, 10), Cost(3, 10), Cost(5, 10)]
    assert benchmark.ratios(one, other) == Cost(3, 2)
    assert benchmark.median(one) == Cost(9, 20)


class Line(L.LightningModule):
    def __init__(self, calls):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.calls = calls

    def training_step(self, batch, batch_idx):
        self.calls.append("t")
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def tiny_fit(folder, calls):
    checkpoints = Checkpoints(every_n_steps=None)
    trainer = make_trainer(checkpoints, max_steps=100, default_root_dir=folder, enable_checkpointing=True)
    data = L.LightningDataModule.from_datasets(TensorDataset(torch.ones(3, 1)), batch_size=1)
    return SimpleNamespace(trainer=trainer, model=Line(calls), datamodule=data)


def test_the_trainer_and_another_loop_take_turns(tmp_path):
    calls = []
    fit = tiny_fit(tmp_path, calls)
    costs = benchmark.interleave_with_trainer(fit, lambda: calls.append("o"), rounds=2, steps=3, warmup=1)
    assert "".join(calls) == "to" + 2 * "tttooo"
    assert {name: len(each) for name, each in costs.items()} == {"trainer": 2, "other": 2}
    assert not list(tmp_path.rglob("*.ckpt"))
