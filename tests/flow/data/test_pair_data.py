from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from zoo.flow.data.pair_data import PairData
from zoo.flow.evaluation.solver_tables import evaluate_straightness
from zoo.flow.inference.pairs import make_pairs
from zoo.flow.inference.requests import GenerationRequest
from zoo.flow.inference.sampler import Sampler
from zoo.flow.nets.mlp import ToyNet
from zoo.flow.nets.velocity import VelocityNet
from zoo.flow.process.coupling import WithinClassTransport
from zoo.flow.process.paths import ConditionalOT
from zoo.flow.process.sampling import noise
from zoo.flow.process.solvers import Solver
from zoo.flow.process.time_samplers import GridTimes, TimeSampler, UniformTimes
from zoo.flow.task import FlowTask
from zoo.training.resume import item_seed


class TwoSpots(VelocityNet):
    """The exact field from noise to two narrow Gaussians at (-2, 0) and (2, 0): its paths bend."""

    SPREAD = 0.2

    def __init__(self) -> None:
        super().__init__()
        self.sample_shape, self.num_classes = (2,), 0

    def forward(self, x: Tensor, t: float, label: Tensor | None = None) -> Tensor:
        centres = torch.tensor([[-2.0, 0.0], [2.0, 0.0]])
        variance = (1 - t) ** 2 + (t * self.SPREAD) ** 2
        distance = x[:, None] - t * centres
        weight = (-distance.square().sum(dim=2) / (2 * variance)).softmax(dim=1)[..., None]
        # E[x1 | x_t] and E[x0 | x_t] of each spot
        x1 = centres + t * self.SPREAD**2 / variance * distance
        x0 = (1 - t) / variance * distance
        return (weight * (x1 - x0)).sum(dim=1)


def sampler(net: VelocityNet, steps: int = 20) -> Sampler:
    return Sampler(net, ConditionalOT(0.0), Solver("euler", steps), chunk=512).eval()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs") / "spots"
    make_pairs(sampler(TwoSpots()), folder, GenerationRequest(640, 0), shard_size=100)
    return folder


def learn(folder: Path, times: TimeSampler, steps: int) -> tuple[FlowTask, PairData]:
    torch.manual_seed(0)
    data = PairData(str(folder), batch_size=128, val_share=0.1)
    data.setup("fit")
    task = FlowTask(
        ToyNet(widths=(32, 32)), ConditionalOT(0.0), times, lambda p: torch.optim.Adam(p, 5e-3), label_drop=0
    )
    task.log_terms = lambda *args, **kwargs: None
    optimizer, batches = task.configure_optimizers(), data.train_batches(0, 1)
    items = [data.train_set[0, index] for index in range(len(data.train_set))]
    for epoch in range(-(-steps // len(batches))):
        batches.set_epoch(epoch)
        for keys in batches:
            seeds = [item_seed(0, *key) for key in keys]
            batch = {**data.collate([items[index] for _, index in keys]), "seeds": seeds}
            optimizer.zero_grad()
            task.training_step(batch, 0).backward()
            optimizer.step()
    return task.eval(), data


def one_step_error(net: VelocityNet, data: PairData) -> float:
    held_out = data.collate([data.val_set[i] for i in range(len(data.val_set))])
    with torch.no_grad():
        return float((held_out["x0"] + net(held_out["x0"], 0.0) - held_out["x1"]).square().mean())


def test_reflow_straightens(pairs: Path) -> None:
    task, data = learn(pairs, UniformTimes(), 300)
    seeds = list(range(100))
    before = evaluate_straightness(sampler(TwoSpots()), None, seeds)
    assert evaluate_straightness(sampler(task.net), None, seeds) < 0.5 * before
    assert one_step_error(task.net, data) < 0.5 * one_step_error(TwoSpots(), data)


def test_distillation_into_one_step(pairs: Path) -> None:
    untrained, _ = learn(pairs, GridTimes(1), 0)
    task, data = learn(pairs, GridTimes(1), 200)
    assert one_step_error(task.net, data) < 0.2 * one_step_error(untrained.net, data)


def test_validation_loss_is_the_straightness_on_pairs(pairs: Path) -> None:
    task, data = learn(pairs, UniformTimes(), 0)
    batch = data.collate([data.val_set[i] for i in range(8)])
    with torch.no_grad():
        result = float(task.evaluate(batch, 0, "val")[0]["loss"])
    chord, expected = batch["x1"] - batch["x0"], 0.0
    for t in (torch.arange(10) + 0.5) / 10:
        with torch.no_grad():
            expected += float((chord - task.net(batch["x0"] + t * chord, t)).square().sum(dim=1).mean()) / 10
    assert result * 2 == pytest.approx(expected, rel=1e-4)  # per element, of which there are two


def test_seeds_of_the_task_change_with_the_epoch_and_the_pair_stays(pairs: Path) -> None:
    data = PairData(str(pairs))
    data.setup("fit")
    first, second, held_out = data.train_set[0, 5], data.train_set[1, 5], data.val_set[5]
    assert len({first["seed"], second["seed"], held_out["seed"]}) == 3
    assert torch.equal(first["x0"], second["x0"]) and torch.equal(first["x1"], second["x1"])
    assert not torch.equal(noise([first["seed"]], (2,))[0], first["x0"])
    assert data.val_set[5]["seed"] == held_out["seed"]


def test_what_is_wrong_with_a_folder_is_named(tmp_path: Path) -> None:
    def setup(**kwargs: float) -> PairData:
        data = PairData(str(tmp_path), **kwargs)
        data.setup("fit")
        return data

    with pytest.raises(FileNotFoundError, match=r"zoo make-pairs RUN"):
        PairData(str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match=r"has no meta.json"):
        setup()
    make_pairs(sampler(ToyNet(widths=(4,)), 1), tmp_path, GenerationRequest(10), shard_size=4)
    with pytest.raises(ValueError, match="val_share lies"):
        setup(val_share=0)
    with pytest.raises(ValueError, match="leave none for training"):
        setup(val_share=0.96)
    shard, meta = tmp_path / "pairs-00001.npy", tmp_path / "meta.json"
    full = np.load(shard)
    other = full.copy()
    other["x0_start"][1] += 0.1
    for write, message in [
        (lambda: shard.write_bytes(shard.read_bytes()[:-8]), "is corrupt"),
        (lambda: np.save(shard, np.zeros(4)), "expected rows of"),
        (lambda: np.save(shard, other), "another noise for seed"),
    ]:
        write()
        data = setup()
        with pytest.raises(ValueError, match=message):
            data.train_set[0, 5]
    data.trainer = SimpleNamespace(lightning_module=SimpleNamespace(coupling=WithinClassTransport()))
    with pytest.raises(ValueError, match=r"model.coupling would"):
        data.setup("fit")
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=r"1 array files are missing, the first pairs-00001.npy"):
        setup()
    for text, message in [("{", "no JSON"), ("{}", "expected the keys count")]:
        meta.write_text(text)
        with pytest.raises(ValueError, match=message):
            setup()
