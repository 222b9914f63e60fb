import functools

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

from tests.training.callbacks.parts import make_trainer
from zoo.training.adversarial import LOSSES, Discriminator, adversarial_loss, discriminator_loss, feature_matching_loss
from zoo.training.gan import GANStep, GANTask, split_batch
from zoo.training.schedules import WarmupCosine

SGD = functools.partial(torch.optim.SGD, lr=0.1)
ADAM = functools.partial(torch.optim.AdamW, lr=1e-2, betas=(0.8, 0.99))
WEIGHTS = {"d/one": 1.0, "g/adv_one": 1.0, "g/fm_one": 2.0, "d/two": 0.5, "g/adv_two": 0.5, "g/fm_two": 1.0}
WEIGHTS["g/l1"] = 4.0


class Toy(Discriminator):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(1, width, 3, padding=1)
        self.score = nn.Conv1d(width, 1, 3, padding=1)
        self.calls = []

    def forward(self, x):
        self.calls.append((len(x), torch.is_grad_enabled(), self.conv.weight.requires_grad))
        hidden = nn.functional.leaky_relu(self.conv(x), 0.1)
        scores = self.score(hidden)
        return [(scores.flatten(1), [hidden, scores])]


class Task(GANTask):
    def __init__(self, dropout=0.0, optimizer=SGD, **kwargs):
        torch.manual_seed(0)
        generator = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.Tanh(), nn.Dropout(dropout), nn.Conv1d(4, 1, 1))
        arguments = {"loss_weights": WEIGHTS, "optimizer_g": optimizer, "optimizer_d": optimizer, **kwargs}
        super().__init__(generator, {"one": Toy(3), "two": Toy(2)}, **arguments)
        self.generated = 0
        self.logs = []

    def generate(self, batch):
        self.generated += torch.is_grad_enabled()
        return self.generator(batch["x"]), batch["y"]

    def reconstruction(self, fake, real, batch):
        assert fake.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
        return {"g/l1": (fake - real).abs().mean()}

    def log_terms(self, stage, terms, batch_size=None):
        super().log_terms(stage, terms, batch_size)
        self.logs.append({key: float(value) for key, value in terms.items()})


def items(count=24, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, 16, generator=generator)
    return [{"x": each, "y": each[:1].cumsum(-1) / 4} for each in x]


def fit(task, batch_size=4, ckpt_path=None, data=None, **kwargs):
    trainer = make_trainer(**{"max_epochs": 1, "limit_val_batches": 0, **kwargs})
    trainer.fit(task, DataLoader(data or items(), batch_size=batch_size), ckpt_path=ckpt_path)
    return trainer


def weights(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def gap(a, b):
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def by_hand(task, batches, clip=None):
    """The original's loop: real and fake judged one after the other, all gradients computed."""
    ds = [task.one, task.two]
    opt_g = task.optimizer_g(task.generator.parameters())
    opt_d = task.optimizer_d([p for d in ds for p in d.parameters()])
    for batch in batches:
        fake, real = task.generator(batch["x"]), batch["y"]
        opt_d.zero_grad()
        loss_d = 1.0 * discriminator_loss(ds[0](real), ds[0](fake.detach()))
        (loss_d + 0.5 * discriminator_loss(ds[1](real), ds[1](fake.detach()))).backward()
        opt_d.step()
        opt_g.zero_grad()
        (r1, f1), (r2, f2) = ((d(real), d(fake)) for d in ds)
        loss = adversarial_loss(f1) + 0.5 * adversarial_loss(f2)
        loss = loss + 2 * feature_matching_loss(r1, f1) + feature_matching_loss(r2, f2) + 4 * (fake - real).abs().mean()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(task.generator.parameters(), clip)
        opt_g.step()


def batches(size=4):
    return list(DataLoader(items(), batch_size=size))


def test_steps_equal_the_original_loop():
    actual, reference = Task(optimizer=ADAM), Task(optimizer=ADAM)
    by_hand(reference, batches())
    fit(actual)
    assert gap(weights(actual), weights(reference)) < 1e-6
    assert actual.generated == 6


def test_weight_zero_skips_the_computation_and_the_log():
    task = Task(loss_weights=WEIGHTS | {"g/fm_one": 0.0, "g/fm_two": 0.0, "g/adv_two": 0.0, "d/two": 0.0})
    fit(task, max_steps=1)
    assert [call[0] for call in task.one.calls] == [8, 4]
    assert task.two.calls == []
    assert list(task.logs[0]) == ["d/one", "grad_norm_d", "g/adv_one", "g/l1", "g/total", "grad_norm_g"]


class TwoTerms(Task):
    def reconstruction(self, fake, real, batch):
        return {**super().reconstruction(fake, real, batch), "g/l2": (fake - real).square().mean()}


@pytest.mark.parametrize(
    ("build", "key"),
    [
        (lambda: Task(loss_weights={k: v for k, v in WEIGHTS.items() if k != "g/fm_two"}), "g/fm_two"),
        (lambda: Task(loss_weights=WEIGHTS | {"d/three": 1.0}), "d/three"),
        (lambda: Task(loss_weights=WEIGHTS | {"g/mel": 1.0}), "g/mel"),
        (TwoTerms, "g/l2"),
        (lambda: GANTask(nn.BatchNorm1d(1), {}, SGD, SGD, {"g/l1": 1.0}, step=GANStep(accumulate=2)), "batch norm"),
        (lambda: fit(Task(scheduler_g=functools.partial(WarmupCosine, warmup_steps=2))), "scheduler_interval to step"),
        (lambda: fit(Task(scheduler_d=torch.optim.lr_scheduler.ReduceLROnPlateau)), "zoo.training.Plateau"),
        (lambda: GANStep(clip_g=0), "clip_g is positive"),
        (lambda: Task(step=GANStep(discriminator_start=3), loss_weights=WEIGHTS | {"g/l1": 0}), "discriminator_start"),
        (lambda: GANTask(nn.Linear(1, 1), {"generator": Toy(1)}, SGD, SGD, {}), "'generator'"),
        (lambda: split_batch({"names": ["a"]}, 2), "accumulate"),
    ],
)
def test_wrong_arguments_are_named(build, key):
    with pytest.raises(ValueError, match=key):
        fit(build(), max_steps=1)


@pytest.mark.parametrize("accumulate", [2, 3])
def test_accumulation_equals_the_big_batch(accumulate):
    complete, parts = Task(optimizer=SGD), Task(optimizer=SGD, step=GANStep(accumulate=accumulate))
    fit(complete, batch_size=8)
    trainer = fit(parts, batch_size=8)
    assert gap(weights(complete), weights(parts)) <= 1e-6
    assert trainer.global_step == 3
    for key, value in complete.logs[-1].items():
        assert parts.logs[-1][key] == pytest.approx(value, rel=1e-4, abs=1e-6)


def test_accumulation_replays_dropout_in_the_recomputed_forward():
    task, outputs = Task(dropout=0.5, step=GANStep(accumulate=2)), []
    task.generator[2].register_forward_hook(lambda *call: outputs.append(call[2].detach().clone()))
    fit(task, max_steps=1)
    first, second, *again = outputs
    assert torch.equal(first, again[0]) and torch.equal(second, again[1])
    assert not torch.equal(first, second)


def test_before_discriminator_start_only_reconstruction_trains():
    task = Task(step=GANStep(discriminator_start=2))
    before = weights(task.one)
    fit(task, max_steps=2)
    assert gap(before, weights(task.one)) == 0
    fit(task, max_steps=3)
    assert list(task.logs[1]) == ["g/l1", "g/total", "grad_norm_g"] and "d/one" in task.logs[-1]
    assert gap(before, weights(task.one)) > 0


def test_clipping_limits_the_norm_and_logs_it_before():
    reference, task = Task(), Task(step=GANStep(clip_g=0.05))
    by_hand(reference, batches()[:1], clip=0.05)
    fit(task, max_steps=1)
    assert task.logs[0]["grad_norm_g"] > 0.05
    assert gap(weights(task), weights(reference)) < 1e-6


@pytest.mark.parametrize(("interval", "epochs", "factor"), [("step", 1, 0.5**6), ("epoch", 2, 0.5**2)])
def test_schedules_step_inside_the_training_step(interval, epochs, factor):
    decay = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)
    task = Task(scheduler_g=decay, scheduler_d=decay, scheduler_interval=interval)
    trainer = fit(task, max_epochs=epochs)
    assert [o.param_groups[0]["lr"] for o in trainer.optimizers] == pytest.approx([0.1 * factor] * 2)


def scaled(scale=128.0):
    return MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=scale))


def test_fp16_clips_unscaled_gradients_and_steps_like_fp32():
    half, full = (Task(step=GANStep(clip_g=0.05, clip_d=0.05)) for _ in range(2))
    start = weights(full)
    fit(half, max_steps=1, plugins=[scaled()])
    fit(full, max_steps=1)
    for key in ("grad_norm_g", "grad_norm_d"):
        assert half.logs[0][key] == pytest.approx(full.logs[0][key], rel=0.02)
        assert full.logs[0][key] > 0.05
    step = gap(weights(full), start)
    assert step > 0.001 and gap(weights(half), weights(full)) < 0.05 * step


def test_fp16_each_optimizer_has_its_own_scaler_and_both_are_saved(tmp_path):
    task, plugin = Task(), scaled()
    plugin.scaler.set_growth_interval(2)
    trainer = fit(task, max_steps=4, plugins=[plugin])
    assert plugin.scaler.get_scale() == task._scaler_d.get_scale() == 128.0 * 4
    task._scaler_d.update(32.0)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    resumed, plugin = Task(), scaled()
    fit(resumed, max_steps=4, plugins=[plugin], ckpt_path=tmp_path / "a.ckpt")
    assert (plugin.scaler.get_scale(), resumed._scaler_d.get_scale()) == (512.0, 32.0)


def test_fp16_overflow_of_the_discriminator_leaves_the_generators_scale():
    task, plugin = Task(loss_weights=WEIGHTS | {"d/one": 1e38}), scaled()
    before = weights(task)
    fit(task, max_steps=1, plugins=[plugin])
    assert (plugin.scaler.get_scale(), task._scaler_d.get_scale()) == (128.0, 64.0)
    after = weights(task)
    assert all(torch.equal(after[k], before[k]) != k.startswith("generator") for k in after)


def test_batch_is_split_along_its_items():
    x = torch.arange(10).reshape(5, 2)
    batch = {"x": x, "names": list("abcde"), "rate": 16000, "scale": torch.tensor(1.0)}
    assert len(split_batch(batch, 9)) == 5
    first, second = split_batch(batch, 2)
    assert second["names"] == ["c", "d", "e"] and second["rate"] == 16000 and second["scale"] == 1.0
    assert len(first["x"]) == 2 and torch.equal(torch.cat([first["x"], second["x"]]), x)
    assert [part.tolist() for part in split_batch(torch.arange(5), 2)] == [[0, 1], [2, 3, 4]]


def outputs(score, *maps):
    return torch.full((2, 3), score), [torch.full((2, 1, 4), value) for value in maps]


def test_losses_are_means_inside_and_sums_outside():
    real = [outputs(1.0, 1.0, 2.0), outputs(0.5, 3.0)]
    fake = [outputs(0.0, 1.5, 2.0), outputs(0.5, 1.0)]
    assert discriminator_loss(real, fake).item() == pytest.approx(0.0 + 0.0 + 0.25 + 0.25)
    assert adversarial_loss(fake).item() == pytest.approx(1.0 + 0.25)
    assert feature_matching_loss(real, fake).item() == pytest.approx(0.5 + 0.0 + 2.0)
    assert LOSSES["hinge"][0](real, fake).item() == pytest.approx(0.0 + 1.0 + 0.5 + 1.5)
    assert LOSSES["hinge"][1](fake).item() == pytest.approx(1.0 + 0.5)


def test_no_gradient_reaches_real_feature_maps():
    real, fake = torch.ones(2, 1, 4, requires_grad=True), torch.zeros(2, 1, 4, requires_grad=True)
    feature_matching_loss([(real[..., 0], [real])], [(fake[..., 0], [fake])]).backward()
    assert real.grad is None
    torch.testing.assert_close(fake.grad, torch.full((2, 1, 4), -1 / 8))
