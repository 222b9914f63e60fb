"""`zoo find-lr`: rates in closed form, GANs with two optimizers, a run that is left alone; all smoke recipes."""

import math
from pathlib import Path

import lightning as L
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.harness import REPOSITORY, TOY_FIT, callback, contents, read_csv
from tests.training.callbacks.parts import make_trainer
from tests.training.test_gan import Task as ToyGAN
from tests.training.test_gan import items
from zoo.cli.main import main
from zoo.tuning.lr_finder import LrRangeTest, smooth, suggest_lr

SMOKES = sorted((REPOSITORY / "configs").glob("*/smoke*.yaml"))
TOY = ["find-lr", *map(str, TOY_FIT[1:])]


class Quadratic(L.LightningModule):
    """Half of the curvature times the square of a weight: SGD is best at one by the curvature, diverges from two on."""

    def __init__(self, curvature, floor=0.0):
        super().__init__()
        self.x = nn.Parameter(torch.ones(()))
        self.curvature, self.floor = curvature, floor

    def training_step(self, batch, batch_idx):
        return 0.5 * self.curvature * self.x.square() + self.floor

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def run(task, test, data=None):
    trainer = make_trainer(test, max_epochs=-1, log_every_n_steps=1)
    trainer.fit(task, DataLoader(data or [torch.zeros(1)] * 50, batch_size=2 if data else 1))
    return test


@pytest.mark.parametrize("curvature", [0.5, 20.0, 1000.0])
def test_rates_of_a_quadratic_are_those_in_closed_form(curvature):
    test = run(Quadratic(curvature, floor=0.1), LrRangeTest(1e-5, 10.0, 150, {}))
    rates = [1e-5 * 10 ** (6 * step / 149) for step in range(150)]
    curve = test.curve()
    left = np.cumprod([1 - curvature * rate for rate in rates[: len(curve["loss"])]])
    np.testing.assert_allclose(curve["tested"], rates[: len(curve["tested"])])
    np.testing.assert_allclose(curve["loss"], 0.5 * curvature * left**2 + 0.1, rtol=1e-3, atol=1e-5)
    assert test.diverged == (curvature > 1)  # else too late, at 4, for four times the lowest loss
    assert not test.diverged or test.rate(len(test.losses) - 2) > 2 / curvature
    steepest, conservative = suggest_lr(curve["rate"], curve["smoothed"], curve["loss"])
    # d ln(rate) = k dt makes x = exp(-curvature rate / k), whose loss falls fastest in ln(rate) at k / (2 curvature)
    expected = math.log(10) * 6 / 149 / (2 * curvature)
    assert expected / 2 < steepest < 2 * expected and conservative < 1 / curvature


def test_both_optimizers_of_a_gan_rise_by_one_factor():
    rates = {"g": 0.1, "d": 0.1}
    test = run(ToyGAN(), LrRangeTest(1e-4, 1e-1, 20, rates), items())
    assert test.loss_key == "g/l1" and tuple(test.rates) == ("g", "d") and len(test.losses) == 21
    test = run(ToyGAN(), LrRangeTest(1e-4, 1e-1, 20, rates, loss_key="d/one"), items())
    assert test.loss_key == "d/one"
    with pytest.raises(ValueError, match="g/l2"):
        run(ToyGAN(), LrRangeTest(1e-4, 1e-1, 20, rates, loss_key="g/l2"), items())


def test_a_loss_that_does_not_fall_suggests_nothing():
    rates = np.geomspace(1e-7, 1, 100)
    for seed in range(30):
        noise = 1 + np.random.default_rng(seed).normal(0, 0.1, 100)
        assert suggest_lr(rates, smooth(noise), noise) is None
    rising = np.linspace(1, 2, 100)
    assert suggest_lr(rates, rising, rising) is None


def test_a_test_is_deterministic_and_leaves_its_run_alone(working_folder, capsys):
    assert main([*map(str, TOY_FIT), "--trainer.max_steps=5", "--trainer.default_root_dir=run"]) == 0
    before = contents(Path("run"))
    settings = ["--batches=30", "--max_lr=10", "--trainer.accumulate_grad_batches=3", "--data.batch_size", "4"]
    settings += callback("zoo.training.LossGuard", limit=1e-6, patience=1)  # would stop at once
    capsys.readouterr()
    assert main([*TOY, *settings, "--output=first"]) == 0
    output = capsys.readouterr().out
    assert main([*TOY, *settings, "--output=second"]) == 0
    assert Path("first/lr.csv").read_bytes() == Path("second/lr.csv").read_bytes()
    assert Path("first/lr.png").stat().st_size > 10_000 and not Path("runs").exists()
    rates = [float(row["lr_optimizer"]) for row in read_csv(Path("first/lr.csv"))]
    np.testing.assert_allclose(rates, np.geomspace(1e-7, 10, 30)[: len(rates)], rtol=1e-5)  # no warm-up, no decay
    assert output.strip().splitlines()[-1].startswith("--model.init_args.optimizer.init_args.lr=")
    assert main([*TOY[:1], *TOY[3:], "--ckpt_path=run", "--batches=30", "--output=third"]) == 0
    assert contents(Path("run")) == before
    assert {path.name for path in Path().iterdir()} == {"first", "run", "second", "third"}
    losses = [float(read_csv(Path(name, "lr.csv"))[0]["loss"]) for name in ("third", "first")]
    assert losses[0] < losses[1]  # trained weights


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SMOKES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_smoke_recipe_is_searched(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    assert main(["find-lr", str(recipe), "--batches=40"]) == 0
    assert len(read_csv(next(Path("runs/find-lr").rglob("lr.csv")))) > 10
    assert main(["find-batch", str(recipe), "--steps=1", "--max=8"]) == 0
    assert capsys.readouterr().out.strip().splitlines()[-1].startswith("--data.init_args.batch_size=")
