import logging

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader

from zoo.training.callbacks.ema import EMA
from zoo.training.callbacks.guard import LossGuard


class Task(L.LightningModule):
    def __init__(self, fail=False):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.net[2].bias.requires_grad_(False)
        self.other = nn.Linear(1, 1)
        self.fail = fail
        self.seen, self.trail = [], []

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


def data(count=6, seed=1):
    x = torch.randn(4 * count, 2, generator=torch.Generator().manual_seed(seed))
    return DataLoader(x, batch_size=4)


def trainer(callbacks, **kwargs):
    options = {"max_epochs": 1, "limit_val_batches": 0, "enable_checkpointing": False, **kwargs}
    return L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks,
        **options,
    )


def averaged(trail, decays):
    value = trail[0].clone()
    for weight, decay in zip(trail[1:], decays, strict=True):
        value = decay * value + (1 - decay) * weight
    return value


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_accumulated_batches_count_once():
    task, ema = Task(), EMA(["net"], decay=0.5)
    trainer([ema], accumulate_grad_batches=2).fit(task, data())
    assert ema.updates == 3
    torch.testing.assert_close(ema.shadow["net.0.weight"], averaged(task.trail[1::2], [0.5, 0.5]))


def test_closed_form_and_what_is_copied():
    task, ema = Task(), EMA(["net"], decay=0.9)
    trainer([ema]).fit(task, data())
    assert ema.updates == 6
    torch.testing.assert_close(ema.shadow["net.0.weight"], averaged(task.trail, [0.9] * 5))
    names = ["net.0.weight", "net.0.bias", "net.1.weight", "net.1.bias", "net.2.weight"]
    assert list(ema.shadow) == [*names, "net.1.running_mean", "net.1.running_var"]
    assert torch.equal(ema.shadow["net.1.running_mean"], task.net[1].running_mean)


def test_start_and_period_count_batches():
    task, ema = Task(), EMA(["net"], decay=0.5, start_step=1, every_n_steps=2)
    trainer([ema], max_epochs=2).fit(task, data(4))
    assert ema.updates == 3
    torch.testing.assert_close(ema.shadow["net.0.weight"], averaged(task.trail[2::2], [0.5] * 2))


def test_warm_up_lowers_the_first_decays():
    task, ema = Task(), EMA(["net"], decay=0.25, warm_up=True)
    trainer([ema]).fit(task, data())
    expected = averaged(task.trail, [2 / 11, 3 / 12, 0.25, 0.25, 0.25])
    torch.testing.assert_close(ema.shadow["net.0.weight"], expected)


def test_evaluation_sees_the_average_and_training_goes_on_with_the_live_weights():
    task, plain, ema = Task(), Task(), EMA(["net"], decay=0.5)
    fitted = trainer([ema], max_epochs=2, limit_val_batches=1)
    fitted.fit(task, data(), data(1))
    trainer([], max_epochs=2).fit(plain, data())
    assert equal(task.state_dict(), plain.state_dict())
    sanity, first, second = task.seen
    torch.testing.assert_close(first, averaged(task.trail[:6], [0.5] * 5))
    torch.testing.assert_close(second, ema.shadow["net.0.weight"])
    assert torch.equal(sanity, Task().net[0].weight)
    fitted.test(task, data(1), verbose=False)
    assert torch.equal(task.seen[-1], second) and equal(task.state_dict(), plain.state_dict())


def test_before_the_first_update_evaluation_uses_the_live_weights():
    task = Task()
    trainer([EMA(["net"], start_step=100)], limit_val_batches=1).fit(task, data(), data(1))
    assert torch.equal(task.seen[-1], task.net[0].weight)


def test_resume_is_exact(tmp_path):
    whole, ema = Task(), EMA(["net"])
    trainer([ema], max_epochs=2).fit(whole, data())
    half = trainer([EMA(["net"])], max_epochs=1)
    half.fit(Task(), data())
    half.save_checkpoint(tmp_path / "a.ckpt")
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert saved["ema"]["updates"] == 6 and set(saved["ema"]) == {"shadow", "updates"}
    resumed = EMA(["net"])
    trainer([resumed], max_epochs=2).fit(Task(), data(), ckpt_path=tmp_path / "a.ckpt")
    assert equal(resumed.shadow, ema.shadow) and resumed.updates == ema.updates == 12
    tested, task = EMA(["net"]), Task()
    trainer([tested]).test(task, data(1), ckpt_path=tmp_path / "a.ckpt", verbose=False)
    assert torch.equal(task.seen[0], saved["ema"]["shadow"]["net.0.weight"])


def test_a_checkpoint_without_average_is_resumed_with_a_warning(tmp_path, caplog):
    half = trainer([])
    half.fit(Task(), data())
    half.save_checkpoint(tmp_path / "a.ckpt")
    ema = EMA(["net"])
    with caplog.at_level(logging.WARNING):
        trainer([ema], max_epochs=2).fit(Task(), data(), ckpt_path=tmp_path / "a.ckpt")
    assert "holds no average" in caplog.text and ema.updates == 6


def test_other_weights_in_the_checkpoint_are_named(tmp_path):
    half = trainer([EMA(["net"])])
    half.fit(Task(), data())
    half.save_checkpoint(tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=r"missing \['other.bias', 'other.weight'\], unexpected \['net.0.bias'"):
        trainer([EMA(["other"])], max_epochs=2).fit(Task(), data(), ckpt_path=tmp_path / "a.ckpt")


class SaveEarly(L.Callback):
    """Saves in its hooks as an ordinary callback, so before EMA can swap back when it is listed first."""

    def __init__(self, path):
        self.path = path

    def on_validation_end(self, trainer, pl_module):
        trainer.save_checkpoint(self.path)

    def on_exception(self, trainer, pl_module, exception):
        trainer.save_checkpoint(self.path)


def test_an_exception_in_validation_leaves_and_saves_the_live_weights(tmp_path):
    task, ema, plain = Task(fail=True), EMA(["net"]), Task()
    saver = ModelCheckpoint(tmp_path, save_on_exception=True)
    callbacks = [SaveEarly(tmp_path / "early.ckpt"), saver, ema]
    with pytest.raises(RuntimeError, match="broken validation"):
        trainer(callbacks, enable_checkpointing=True, limit_val_batches=1).fit(task, data(), data(1))
    trainer([]).fit(plain, data())
    assert equal(task.state_dict(), plain.state_dict())
    assert not torch.equal(task.seen[-1], plain.net[0].weight)
    files = sorted(tmp_path.iterdir())
    assert len(files) >= 2
    for path in files:
        saved = torch.load(path, weights_only=True)
        assert equal(saved["state_dict"], plain.state_dict())
        assert torch.equal(saved["ema"]["shadow"]["net.0.weight"], task.seen[-1])


def test_a_save_in_the_middle_of_validation_holds_live_weights(tmp_path):
    task, plain, ema = Task(), Task(), EMA(["net"])
    trainer([SaveEarly(tmp_path / "a.ckpt"), ema], limit_val_batches=1).fit(task, data(), data(1))
    trainer([]).fit(plain, data())
    saved = torch.load(tmp_path / "a.ckpt", weights_only=True)
    assert equal(saved["state_dict"], plain.state_dict()) and equal(saved["ema"]["shadow"], ema.shadow)


def test_a_batch_that_the_guard_skipped_is_not_averaged():
    bad = [torch.full((4, 2), float("nan")) if i == 3 else torch.randn(4, 2) for i in range(6)]
    ema = EMA(["net"])
    trainer([ema, LossGuard()]).fit(Task(), DataLoader(bad, batch_size=None))
    assert ema.updates == 5
    assert all(bool(value.isfinite().all()) for value in ema.shadow.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modules": []}, "modules is empty"),
        ({"modules": ["net"], "decay": 1.0}, "decay is below 1"),
        ({"modules": ["net"], "every_n_steps": 0}, "every_n_steps is at least 1"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        EMA(**arguments)


def test_an_unknown_part_is_named():
    with pytest.raises(ValueError, match="no module 'generator', only net, other"):
        trainer([EMA(["generator"])]).fit(Task(), data())
