import copy
import functools
import itertools

import lightning as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

from zoo.training.adversarial import Discriminator
from zoo.training.callbacks.guard import DivergedError, LossGuard
from zoo.training.gan import GANStep, GANTask

NAN = float("nan")


class Task(L.LightningModule):
    def __init__(self, lr=0.01):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.lr = lr

    def training_step(self, batch, batch_idx):
        loss = (self.net(batch["x"]) - 1).square().mean() * batch["scale"]
        self.log("train/loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Judge(Discriminator):
    def __init__(self):
        super().__init__()
        self.score = nn.Conv1d(1, 1, 3)

    def forward(self, x):
        scores = self.score(x).flatten(1)
        return [(scores, [scores])]


class Adversarial(GANTask):
    def __init__(self, **kwargs):
        torch.manual_seed(0)
        adam = functools.partial(torch.optim.AdamW, lr=0.01)
        weights = {"d/one": 1.0, "g/adv_one": 1.0, "g/fm_one": 1.0, "g/l1": 1.0}
        super().__init__(nn.Conv1d(1, 1, 3, padding=1), {"one": Judge()}, adam, adam, weights, **kwargs)

    def generate(self, batch):
        real = batch["x"].reshape(4, 1, -1)
        return self.generator(real), 0.5 * real

    def reconstruction(self, fake, real, batch):
        return {"g/l1": (fake - real).abs().mean() * batch["scale"]}


class Watch(L.Callback):
    """Keeps weights and optimizer states after every batch."""

    def __init__(self):
        self.states = []

    def on_train_batch_end(self, trainer, pl_module, *args):
        self.states.append(copy.deepcopy([pl_module.state_dict(), [o.state_dict() for o in trainer.optimizers]]))


def batches(count=12, width=2, **changes):
    generator = torch.Generator().manual_seed(1)
    made = [{"x": torch.randn(4, width, generator=generator), "scale": 1.0, "names": ["a", "b"]} for _ in range(count)]
    for index, change in changes.items():
        made[int(index[1:])] |= change
    return made


def fit(task, guard, made, ckpt_path=None, **kwargs):
    watch = Watch()
    trainer = L.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=[guard, watch] if guard else [watch],
        **{"max_epochs": 1, **kwargs},
    )
    trainer.fit(task, DataLoader(made, batch_size=None), ckpt_path=ckpt_path)
    return trainer, watch.states


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


NAN_BATCH = {"x": torch.full((4, 2), NAN)}


@pytest.mark.parametrize("change", [NAN_BATCH, {"scale": 1000.0}, {"scale": NAN}])
def test_automatic_a_bad_batch_touches_nothing(change):
    guard = LossGuard(window=5)
    trainer, states = fit(Task(), guard, batches(x7=change))
    assert guard.skipped_batches == 1 and float(trainer.callback_metrics["train/skipped_batches"]) == 1
    assert same(states[6], states[7]) and not same(states[7], states[8])
    without = batches()
    del without[7]
    _, reference = fit(Task(), None, without)
    assert same(states[-1], reference[-1])


def test_gan_a_nan_batch_touches_nothing():
    guard = LossGuard()
    trainer, states = fit(Adversarial(), guard, batches(width=8, x7={"x": torch.full((4, 8), NAN)}))
    assert same(states[6], states[7]) and not same(states[7], states[8])
    assert guard.skipped_batches == 1 and trainer.global_step == 12


def test_gan_a_bad_discriminator_loss_also_skips_the_generators_step():
    guard = LossGuard(window=5, factor=20)
    _, states = fit(Adversarial(), guard, batches(width=8, x7={"x": 100 * torch.randn(4, 8)}))
    assert guard.skipped_batches == 1 and same(states[6], states[7])


def test_gan_a_bad_generator_loss_skips_the_generator():
    guard = LossGuard(window=5)
    _, states = fit(Adversarial(), guard, batches(width=8, x7={"scale": 1000.0}))
    (before, (adam_g, _)), (after, (adam_g_after, _)) = states[6], states[7]
    assert guard.skipped_batches == 1 and same(adam_g, adam_g_after)
    assert all(torch.equal(before[key], after[key]) for key in before if key.startswith("generator"))


def test_gan_in_chunks_judges_the_whole_batch():
    guard = LossGuard(window=5)
    _, states = fit(Adversarial(step=GANStep(accumulate=2)), guard, batches(width=8, x7={"x": torch.full((4, 8), NAN)}))
    assert guard.skipped_batches == 1 and same(states[6], states[7])


def test_a_gradient_that_is_not_finite_is_bad():
    class Root(Task):
        def training_step(self, batch, batch_idx):
            return super().training_step(batch, batch_idx) + (self.net[0].weight * batch["zero"]).abs().sqrt().sum()

    made = [batch | {"zero": 0.0 if i == 3 else 1.0} for i, batch in enumerate(batches(6))]
    guard = LossGuard()
    _, states = fit(Root(), guard, made)
    assert guard.skipped_batches == 1 and same(states[2], states[3])


def test_an_absolute_limit_holds_from_the_first_batch():
    guard = LossGuard(limit=100.0)
    _, states = fit(Task(), guard, batches(3, x0={"scale": 1000.0}))
    assert guard.skipped_batches == 1 and states[0][1][0]["state"] == {}


def test_accumulated_batches_are_dropped_together():
    guard = LossGuard()
    _, states = fit(Task(), guard, batches(6, x2=NAN_BATCH), accumulate_grad_batches=2)
    assert guard.skipped_batches == 1
    assert same(states[1], states[3]) and not same(states[3], states[5])


def test_patience_ends_the_run_and_names_batch_terms_and_items():
    made = batches(8, x3={"scale": NAN}, x5={"scale": NAN}, x6={"scale": NAN})
    with pytest.raises(DivergedError) as caught:
        fit(Task(), LossGuard(patience=2), made)
    text = str(caught.value)
    assert text.startswith("2 bad batches in a row, the last: batch 6 of epoch 0: the loss is nan; ")
    assert "train/loss = nan" in text and "items: a, b" in text


def test_reduce_lowers_the_rate_below_any_schedule():
    class Scheduled(Task):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
            return [optimizer], [
                {"scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5), "interval": "step"}
            ]

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
    first = LossGuard("reduce", window=5)
    trainer, _ = fit(Task(), first, batches(x2={"scale": NAN}))
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    torch.load(tmp_path / "a.ckpt", weights_only=True)
    second = LossGuard("reduce", window=5)
    fit(Task(), second, batches(x0={"scale": 1000.0}), ckpt_path=tmp_path / "a.ckpt", max_epochs=2)
    assert second.skipped_batches == 2 and second.multiplier == 0.25


def test_fp16_losses_are_unscaled_and_overflows_are_the_scalers_business():
    guard = LossGuard(limit=100.0)
    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=2.0**16))
    _, states = fit(Task(), guard, batches(6, x3={"scale": NAN}), plugins=[plugin])
    assert guard.skipped_batches == 1 and same(states[2], states[3])
    assert all(loss < 100 for loss in guard.state_dict()["losses"][0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"action": "stop"}, "action is"), ({"factor": 1.0}, "factor is above 1"), ({"patience": 0}, "at least 1")],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        LossGuard(**arguments)
