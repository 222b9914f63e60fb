from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from tests.compressed_ad.parts import DIM, policy
from zoo.compressed_ad import DistillationTask, EpsilonCurriculum, HistoryData, InContextPolicy, ReconstructionDecoder
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.losses import reconstruction_loss
from zoo.compressed_ad.rollout import rollout
from zoo.training.task import WeightedMeans

ENV = Darkroom(3, 4)


def build_policy(mask: str = "causal", decoder: bool = True) -> InContextPolicy:
    parts = {"decoder": ReconstructionDecoder(DIM, 1, 2, dropout=0.0)} if decoder else {}
    return policy(2, 3, 10, latent_mask=mask, arrangement="separate" if mask == "full" else "fused", **parts)


def build(net: InContextPolicy | None = None, **kwargs: object) -> DistillationTask:
    task = DistillationTask(net or build_policy(), ENV, partial(torch.optim.Adam, lr=3e-3), **kwargs)
    task.logged = {}
    task.log_terms = lambda stage, terms, batch_size: task.logged.update(terms)
    task._trainer = SimpleNamespace(datamodule=None, global_step=0, callbacks=[], strategy=None)
    return task


def make(count: int = 6, **kwargs: object) -> dict[str, object]:
    data = HistoryData(ENV, demonstrator=EpsilonCurriculum(ENV, 6), batch_size=count, epoch_items=count, **kwargs)
    data.setup("fit")
    return next(iter(data.train_dataloader()))


def test_dense_loss_is_over_all_steps() -> None:
    task, batch = build(build_policy(decoder=False)), make()
    logits = task.policy(batch["steps"]).logits
    expected = F.cross_entropy(logits.flatten(0, 1), batch["steps"].actions.flatten())
    torch.testing.assert_close(task.training_step(batch, 0), expected)
    right = (logits.argmax(-1) == batch["steps"].actions).float().mean()
    torch.testing.assert_close(task.logged["acc_action"], right)
    assert (task.logged["compressions"], task.logged["length"]) == (3, 24)
    assert "stage" not in task.logged and "loss_recon" not in task.logged


@pytest.mark.parametrize("mask", ["causal", "full"])
def test_the_last_action_may_train_alone(mask: str) -> None:
    task, batch = build(build_policy(mask), dense=False, label_smoothing=0.1), make()
    logits = task.policy(batch["steps"], last_only=True).logits[:, 0]
    expected = F.cross_entropy(logits, batch["steps"].actions[:, -1], label_smoothing=0.1)
    torch.testing.assert_close(task.training_step(batch, 0), expected)
    plain = F.cross_entropy(logits, batch["steps"].actions[:, -1])
    torch.testing.assert_close(task.evaluate(batch, 0, "val")[0]["loss_action"], plain)


def test_reconstruction_is_added() -> None:
    task, batch = build(recon_weight=0.5, reward_weight=5.0), make()
    loss = task.training_step(batch, 0)
    output = task.policy(batch["steps"])
    losses = [reconstruction_loss(task.policy, each, 5.0) for each in output.compressions]
    assert len(losses) == 3
    torch.testing.assert_close(task.logged["loss_recon"], torch.stack(losses).mean())
    torch.testing.assert_close(loss, task.logged["loss_action"] + 0.5 * task.logged["loss_recon"])
    torch.testing.assert_close(loss, task.logged["loss"])
    short = make(length=5)
    torch.testing.assert_close(task.training_step(short, 0), task.logged["loss_action"])
    assert task.logged["loss_recon"] == 0


def test_returns_are_those_of_the_rollout_in_any_split() -> None:
    task = build(episodes=3).eval()
    tasks, seeds = ENV.tasks(), list(range(9))
    expected = rollout(task.policy, ENV, tasks, seeds, 3).returns
    complete, parts = WeightedMeans(), WeightedMeans()
    complete.add(*task.evaluate({"tasks": tasks, "seeds": seeds}, 0, "val"))
    for part in (slice(0, 4), slice(4, 9)):
        parts.add(*task.evaluate({"tasks": tasks[part], "seeds": seeds[part]}, 0, "val"))
    assert complete.compute() == pytest.approx(parts.compute())
    means = {"return_first": expected[:, 0], "return_last": expected[:, 2], "return_mean": expected}
    assert complete.compute() == pytest.approx({key: float(value.mean()) for key, value in means.items()})
