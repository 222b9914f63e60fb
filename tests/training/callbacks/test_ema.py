"""The average: closed form, evaluation, checkpoints in the middle of it, and resume."""

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.training.callbacks.parts import equal_states, make_trainer
from zoo.training.callbacks.ema import EMA


class Task(L.LightningModule):
    def __init__(self, fail=False):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.net[2].bias.requires_grad_(False)
        self.other = nn.Linear(1, 1)
        self.fail = fail
        self.seen, self.trail = [], []  # the first weight in evaluations, and after each batch

    @property
    def alias(self):
        return self.net

    def training_step(self, batch, batch_idx):
        return self.other(self.net(batch)).square().mean()

    def on_train_batch_end(self, *args):
        self.trail.append(self.net[0].weight.detach().clone())

    def validation_step(self, batch, batch_idx):
        self.seen.append(self.net[0].weight.detach().clone())
        if self.fail and len(self.trail):
            raise RuntimeError("broken validation")

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data(count=6):
    x = torch.randn(4 * count, 2, generator=torch.Generator().manual_seed(1))
    return DataLoader(x, batch_size=4)


def train(*callbacks, task=None, loader=None, ckpt_path=None, **settings):
    task = task or Task()
    trainer = make_trainer(*callbacks, **{"max_epochs": 1, "limit_val_batches": 0, **settings})
    trainer.fit(task, loader or data(), data(1), ckpt_path=ckpt_path)
    return trainer, task


def average(trail, decays):
    value = trail[0].clone()
    for weight, decay in zip(trail[1:], decays, strict=True):
        value = decay * value + (1 - decay) * weight
    return value


@pytest.mark.parametrize(
    ("arguments", "settings", "steps", "decays"),
    [
        ({"decay": 0.9}, {}, slice(None), [0.9] * 5),
        ({"decay": 0.5}, {"accumulate_grad_batches": 2}, slice(1, None, 2), [0.5] * 2),
        ({"decay": 0.5, "start_step": 1, "every_n_steps": 2}, {"max_epochs": 2}, slice(2, None, 2), [0.5] * 4),
        ({"decay": 0.25, "warm_up": True}, {}, slice(None), [2 / 11, 3 / 12, 0.25, 0.25, 0.25]),
    ],
)
def test_closed_form(arguments, settings, steps, decays):
    ema = EMA(["net"], **arguments)
    _, task = train(ema, **settings)
    torch.testing.assert_close(ema.shadow["net.0.weight"], average(task.trail[steps], decays))
    names = ["net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias", "net.2.weight"]
    assert list(ema.shadow) == [*names, "net.1.running_mean", "net.1.running_var"]


def test_a_run_has_one_average():
    with pytest.raises(ValueError, match="a run has one"):
        train(EMA(["net"]), EMA(["other"]))


def test_evaluation_sees_the_average_and_training_the_weights():
    ema, plain = EMA(["net"], decay=0.5), train(max_epochs=2)[1]
    trainer, task = train(ema, max_epochs=2, limit_val_batches=1)
    assert equal_states(task.state_dict(), plain.state_dict())
    sanity, first, second = task.seen
    assert torch.equal(sanity, Task().net[0].weight)
    torch.testing.assert_close(first, average(task.trail[:6], [0.5] * 5))
    trainer.test(task, data(1), verbose=False)
    assert torch.equal(task.seen[-1], second) and torch.equal(second, ema.shadow["net.0.weight"])
    assert equal_states(task.state_dict(), plain.state_dict())
    _, before = train(EMA(["net"], start_step=100), limit_val_batches=1)
    assert torch.equal(before.seen[-1], before.net[0].weight)


def test_resume_is_exact(tmp_path):
    ema, resumed, tested = EMA(["net"]), EMA(["net"]), EMA(["net"])
    train(ema, max_epochs=2)
    train(EMA(["net"]))[0].save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)["ema"]
    assert saved["updates"] == 6 and set(saved) == {"shadow", "updates"}
    train(resumed, max_epochs=2, ckpt_path=tmp_path / "a.ckpt")
    assert equal_states(resumed.shadow, ema.shadow) and resumed.updates == ema.updates == 12
    task = Task()
    make_trainer(tested).test(task, data(1), ckpt_path=tmp_path / "a.ckpt", verbose=False)
    assert torch.equal(task.seen[0], saved["shadow"]["net.0.weight"])
    with pytest.raises(ValueError, match=r"other weights than modules .*net\.0\.bias"):
        train(EMA(["other"]), max_epochs=2, ckpt_path=tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match="no weights of the name 'alias'"):
        train(EMA(["alias"]))


def test_half_precisions_are_averaged_in_float32(tmp_path):
    ema, settings = EMA(["net"], decay=0.9999), {"precision": "bf16-true", "max_epochs": 2}
    trainer, task = train(ema, limit_val_batches=1, **settings)
    trail = [weight.float() for weight in task.trail]
    expected = average(trail, [0.9999] * 11)
    torch.testing.assert_close(ema.shadow["net.0.weight"], expected, rtol=0, atol=2e-6)
    assert not torch.equal(expected, trail[0]) and torch.equal(expected.bfloat16(), trail[0].bfloat16())
    assert torch.equal(task.seen[-1], expected.bfloat16())
    assert equal_states(task.state_dict(), train(**settings)[1].state_dict())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    checkpoint = torch.load(tmp_path / "a.ckpt", weights_only=False)
    checkpoint["ema"]["shadow"] = {name: value.bfloat16() for name, value in checkpoint["ema"]["shadow"].items()}
    torch.save(checkpoint, tmp_path / "half.ckpt")  # as before the average was kept in float32
    for name in ("a", "half"):
        resumed = EMA(["net"], decay=0.9999)
        train(resumed, ckpt_path=tmp_path / f"{name}.ckpt", **{**settings, "max_epochs": 3})
        assert {value.dtype for value in resumed.shadow.values()} == {torch.float32}


class SaveEarly(L.Callback):
    """Saves before EMA can swap back, when it is listed first."""

    def __init__(self, path):
        self.path = path

    def on_validation_end(self, trainer, pl_module):
        trainer.save_checkpoint(self.path)

    def on_exception(self, trainer, pl_module, exception):
        trainer.save_checkpoint(self.path)


@pytest.mark.parametrize("fail", [False, True])
def test_a_save_in_the_middle_of_an_evaluation_has_the_weights(fail, tmp_path):
    task, ema, plain = Task(fail), EMA(["net"]), train()[1]
    callbacks = [SaveEarly(tmp_path / "a.ckpt"), ema]
    if fail:
        with pytest.raises(RuntimeError, match="broken validation"):
            train(*callbacks, task=task, limit_val_batches=1)
    else:
        train(*callbacks, task=task, limit_val_batches=1)
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert equal_states(saved["state_dict"], plain.state_dict()) and equal_states(task.state_dict(), plain.state_dict())
    assert torch.equal(saved["ema"]["shadow"]["net.0.weight"], task.seen[-1])
    assert not torch.equal(task.seen[-1], plain.net[0].weight)
