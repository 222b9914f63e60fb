"""Bad batches, reduced rates and plateaus, over a resume."""

import copy
import functools
import itertools

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping
from torch import nn
from torch.utils.data import DataLoader
from toy_system.data import PairData

from tests.training.callbacks.parts import equal_states, make_trainer
from tests.training.test_gan import ADAM, items
from tests.training.test_gan import Task as ToyGAN
from zoo.runs.checkpoints import find_checkpoints
from zoo.training.callbacks.checkpoint import Checkpoints
from zoo.training.callbacks.guard import DivergedError, LossGuard, Plateau
from zoo.training.gan import GANStep
from zoo.training.task import ZooTask

NAN = float("nan")


class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))

    def training_step(self, batch, batch_idx):
        loss = (self.net(batch["x"]) - 1).square().mean() * batch["scale"]
        self.log("train/loss", loss)
        # the gradient of the root of 0 is infinite
        return loss + (self.net[0].weight * batch["zero"]).abs().sqrt().sum() if "zero" in batch else loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Watch(L.Callback):
    """Keeps weights and optimizer states after every batch."""

    def __init__(self):
        self.states = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.states.append(copy.deepcopy([pl_module.state_dict(), [o.state_dict() for o in trainer.optimizers]]))


def batches(count=12, **changes):
    generator = torch.Generator().manual_seed(1)
    made = [{"x": torch.randn(4, 2, generator=generator), "scale": 1.0, "names": ["a", "b"]} for _ in range(count)]
    for index, change in changes.items():
        made[int(index[1:])] |= change
    return made


def fit(task, guard, made, ckpt_path=None, **settings):
    watch = Watch()
    trainer = make_trainer(*([guard] if guard else []), watch, **{"max_epochs": 1, **settings})
    trainer.fit(task, DataLoader(made, batch_size=None), ckpt_path=ckpt_path)
    return trainer, watch.states


@pytest.mark.parametrize(
    "change", [{"x": torch.full((4, 2), NAN)}, {"scale": 1000.0}, {"scale": NAN}, {"zero": 0.0}], ids=str
)
def test_a_bad_batch_touches_nothing(change):
    guard = LossGuard(window=5)
    trainer, states = fit(Task(), guard, batches(x7=change))
    assert guard.skipped_batches == float(trainer.callback_metrics["train/skipped_batches"]) == 1
    assert equal_states(states[6], states[7]) and not equal_states(states[7], states[8])
    without = batches()
    del without[7]
    assert equal_states(states[-1], fit(Task(), None, without)[1][-1])


@pytest.mark.parametrize("change", [{"x": torch.full((4, 2, 16), NAN)}, {"y": 1000 * torch.ones(4, 1, 16)}])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_bad_batch_of_a_gan_touches_nothing(change, accumulate):
    guard, made = LossGuard(window=5, factor=20), list(DataLoader(items(48), batch_size=4))
    made[7] |= change
    _, states = fit(ToyGAN(optimizer=ADAM, step=GANStep(accumulate=accumulate)), guard, made)
    assert guard.skipped_batches == 1 and equal_states(states[6], states[7]) and not equal_states(states[7], states[8])


def test_accumulated_batches_are_skipped_together_and_a_limit_holds_at_once():
    guard = LossGuard(limit=100.0)
    _, states = fit(Task(), guard, batches(6, x0={"scale": 1000.0}, x4={"scale": NAN}), accumulate_grad_batches=2)
    assert guard.skipped_batches == 2 and states[1][1][0]["state"] == {}
    assert not equal_states(states[1], states[3]) and equal_states(states[3], states[5])


def test_a_window_that_the_epoch_cuts_short_has_the_loss_of_a_whole_one():
    losses = []
    for accumulate in (4, 8):
        guard = LossGuard()
        fit(Task(), guard, batches(4), accumulate_grad_batches=accumulate)
        losses += guard.state_dict()["losses"][0]
    assert len(losses) == 2 and losses[0] == pytest.approx(losses[1])


def test_patience_ends_the_run_and_names_batch_terms_and_items():
    made = batches(8, x3={"scale": NAN}, x5={"scale": NAN}, x6={"scale": NAN})
    with pytest.raises(DivergedError, match=r"batch 6 of epoch 0: .*train/loss = nan.*a, b"):
        fit(Task(), LossGuard(patience=2), made)


def test_reduce_lowers_the_rate_below_any_schedule():
    class Scheduled(Task):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

        def training_step(self, batch, batch_idx):
            return self.net[2].bias.sum() * batch["scale"]

    guard = LossGuard("reduce", reduce_factor=0.1, floor=0.02)
    trainer, states = fit(Scheduled(), guard, batches(6, x2={"scale": NAN}, x4={"scale": NAN}))
    bias = [float(state[0]["net.2.bias"]) for state in states]
    moves = [before - after for before, after in itertools.pairwise(bias)]
    assert moves == pytest.approx([0.25, 0, 0.0625 * 0.1, 0, 0.015625 * 0.02], abs=1e-7)
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5**7)
    assert float(trainer.callback_metrics["train/guard_lr_multiplier"]) == pytest.approx(0.02)


def test_window_and_counters_are_restored(tmp_path):
    fit(Task(), LossGuard("reduce", window=5), batches(x2={"scale": NAN}))[0].save_checkpoint(tmp_path / "a.ckpt")
    torch.load(tmp_path / "a.ckpt", weights_only=True)
    second = LossGuard("reduce", window=5)
    fit(Task(), second, batches(x0={"scale": 1000.0}), ckpt_path=tmp_path / "a.ckpt", max_epochs=2)
    assert second.skipped_batches == 2 and second.multiplier == 0.25


class Validated(ZooTask):
    """Its rate halves at each step; its validations, after every third step, improve twice."""

    errors = (5.0, 4.0, 4.0, 4.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0)

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def training_step(self, batch, batch_idx):
        return self.weight.sum()

    def evaluate(self, batch, batch_idx, stage):
        return {"loss": self.errors[self.global_step // 3 - 1]}, 1

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def validate(folder, callback, max_steps, ckpt_path=None, task=None, monitor=None):
    settings = {"num_sanity_val_steps": 0, "val_check_interval": 3, "check_val_every_n_epoch": None}
    settings |= {"default_root_dir": folder, "use_distributed_sampler": False, "enable_checkpointing": True}
    checkpoints = Checkpoints(every_n_steps=1, every_minutes=None, keep_last=100, monitor=monitor, save_best=3)
    trainer = make_trainer(callback, checkpoints, max_steps=max_steps, **settings)
    trainer.fit(task or Validated(), PairData(items=8, batch_size=2), ckpt_path=ckpt_path)
    return trainer.global_step


@pytest.mark.parametrize(
    ("make", "steps", "end"),  # the ninth validation is the fourth without improvement
    [
        (functools.partial(EarlyStopping, "val/loss", patience=4), 100, 27),
        (functools.partial(Plateau, patience=3, factor=0.1), 28, 28),
    ],
)
def test_resumed_as_if_never_killed(make, steps, end, tmp_path):
    complete = make()
    assert validate(tmp_path / "whole", complete, steps) == end
    for killed in (8, 9, 10):
        resumed, saved = make(), find_checkpoints(tmp_path / "whole", f"step_{killed:08d}.ckpt")[0]
        assert validate(tmp_path / str(killed), resumed, steps, saved) == end
        assert str(resumed.state_dict()) == str(complete.state_dict())


def test_a_value_that_a_validation_does_not_give_is_not_that_of_an_earlier_one(tmp_path):
    class Sparse(Validated):
        def evaluate(self, batch, batch_idx, stage):
            return ({"loss": 1.0} if self.global_step == 3 else {"other": 1.0}), 1

    plateau = Plateau("val/loss", patience=2)
    validate(tmp_path, plateau, 12, task=Sparse(), monitor="val/loss")
    assert plateau.waited == 0 and plateau.multiplier == 1 and plateau.best == 1
    assert [path.name for path in tmp_path.glob("best-*")] == ["best-step_00000003-1.ckpt"]


def test_a_metric_that_is_not_logged_is_named(tmp_path):
    with pytest.raises(ValueError, match="'val/x' is not logged"):
        validate(tmp_path, Plateau("val/x"), 3)
