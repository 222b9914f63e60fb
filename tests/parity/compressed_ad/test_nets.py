from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.compressed_ad.nets.test_policy import act_through
from tests.parity.compressed_ad.original_agents import LegacyEncoder, training_logits
from zoo.common.safe_load import load_foreign_checkpoint
from zoo.compressed_ad import Darkroom, InContextPolicy, LinearEmbedding, Transformer
from zoo.compressed_ad.convert import from_original
from zoo.compressed_ad.convert.converter import PolicyConverter, to_original_state
from zoo.compressed_ad.losses import reconstruction_loss
from zoo.compressed_ad.nets.compression import EncoderCompressor, QueryCompressor, ReconstructionDecoder
from zoo.compressed_ad.nets.policy import Compression
from zoo.compressed_ad.nets.steps import Steps
from zoo.compressed_ad.rollout import rollout
from zoo.training.schedules import WarmupCosine

KINDS = {"ad": "AD", "cad": "CAD", "cadv1": "v1"}
CONTEXTS = ("one_transition", "no_compression", "exactly_full", "one_over", "medium", "long")


@pytest.fixture(scope="module")
def golden(folder: Path) -> dict[str, dict]:
    return {name: load_foreign_checkpoint(folder / f"{name}_io.pt") for name in KINDS}


@pytest.fixture
def load(folder: Path) -> Callable[[str], InContextPolicy]:
    return lambda name: from_original(folder / f"{name}_ckpt-0.pt")


def close(actual: Tensor, expected: Tensor | float, atol: float = 1e-5) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=torch.float32), atol=atol, rtol=0)


def inputs(batch: dict[str, Tensor]) -> list[Tensor]:
    return [batch[key].float() for key in ("states", "actions", "rewards", "next_states", "query_states")]


def to_steps(batch: dict[str, Tensor]) -> Steps:
    rewards = batch["rewards"].long()
    numbers = (batch["states"].long(), batch["actions"].argmax(-1), rewards, batch["next_states"].long())
    return Steps(*numbers, torch.zeros_like(rewards, dtype=torch.bool))


def without_dropout(policy: InContextPolicy) -> InContextPolicy:
    """A policy in training mode that drops nothing."""
    for module in policy.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif hasattr(module, "dropout") and isinstance(module.dropout, float):
            module.dropout = 0.0
    return policy.train()


def compress(policy: InContextPolicy, steps: Steps, latents: Tensor | None = None) -> Compression:
    tokens = policy.embedding.transitions(steps)
    tokens = tokens if latents is None else torch.cat([latents, tokens], 1)
    return Compression(tokens, steps, policy.compressor(tokens))


def check_gradients(policy: InContextPolicy, expected: dict[str, float | None], kind: str) -> None:
    results = {name: parameter.grad for name, parameter in policy.named_parameters()}
    renamed = to_original_state(results, kind)
    assert set(renamed) == set(expected)
    for name, norm in expected.items():
        grad = renamed[name]
        if norm is None:
            assert grad is None or not grad.any(), name
        else:
            assert float(grad.norm()) == pytest.approx(norm, abs=1e-4), name


@torch.no_grad()
def test_ad(golden, load):
    policy = load("ad")
    for length in ("full", "short"):
        batch, expected = golden["ad"][f"batch_{length}"], golden["ad"]["out"][length]
        tokens = policy.embedding.transitions(to_steps(batch))
        query = policy.embedding.queries(batch["query_states"].long())[:, None]
        logits = training_logits(policy, *inputs(batch))
        close(policy.transformer(torch.cat([tokens, query], 1)), expected["transformer_out"])
        close(logits, expected["logits"])
        targets = batch["target_actions"].long()
        close(F.cross_entropy(logits, targets), expected["loss_action"])
        close((logits.argmax(1) == targets).float().mean(), expected["acc_action"])


@pytest.mark.parametrize("name", [*CONTEXTS, "long_max_compressions_0"])
@torch.no_grad()
def test_cad(golden, load, name):
    policy, expected = load("cad"), golden["cad"]["out"][name]
    limit = 0 if name.endswith("_0") else None
    batch = golden["cad"]["batches"][name.removesuffix("_max_compressions_0")]
    logits = training_logits(policy, *inputs(batch), max_compressions=limit)
    close(logits, expected["logits"])
    close(F.cross_entropy(logits, batch["target_actions"].long()), expected["loss_action"])
    if expected["latents"] is not None:
        (count,) = expected["n_tokens_into_each_compression"]
        close(compress(policy, to_steps(batch).slice(0, count)).latents, expected["latents"])
    if "pretrain_loss_recon" in expected:
        close(reconstruction_loss(policy, compress(policy, to_steps(batch)), 1.0), expected["pretrain_loss_recon"])


@torch.no_grad()
def test_recurrence_and_reconstruction(golden, load):
    policy, expected = load("cad"), golden["cad"]["recurrence"]
    steps = to_steps(golden["cad"]["batches"]["recurrence"])
    close(policy.embedding.transitions(steps), expected["context_embed"])
    first = compress(policy, steps)
    close(first.latents, expected["latents_1"])
    second = compress(policy, steps.slice(0, 13), first.latents)
    close(second.latents, expected["latents_2"])
    close(policy.decoder(second.latents, torch.arange(7)), expected["recon7_from_latents_2"])


@pytest.mark.parametrize("depth", range(4))
@torch.no_grad()
def test_earlier_encoder(golden, load, depth):
    policy, case = load("cadv1"), golden["cadv1"]["cases"][depth]
    lengths = case["segment_lengths"]
    assert len(lengths) == depth == len(case["latents_per_stage"])
    logits = training_logits(policy, *inputs(case["batch"]), segment_lengths=lengths)
    close(logits, case["logits"])
    close(F.cross_entropy(logits, case["batch"]["target_actions"].long()), case["loss_action"])
    latents, steps = None, to_steps(case["batch"])
    for length, expected in zip(lengths, case["latents_per_stage"], strict=True):
        latents = compress(policy, steps.slice(0, length), latents).latents
        steps = steps.slice(length, None)
        close(latents, expected)


@pytest.mark.parametrize("name", CONTEXTS)
def test_cad_training_loss_and_gradients(golden, load, folder, name):
    policy, config = without_dropout(load("cad")), PolicyConverter().read(folder / "cad_ckpt-0.pt").settings
    batch, expected = golden["cad"]["batches"][name], golden["cad"]["train0"][name]
    action = F.cross_entropy(training_logits(policy, *inputs(batch)), batch["target_actions"].long())
    recon = torch.zeros(())
    if expected["num_compressions"]:
        (count,) = golden["cad"]["out"][name]["n_tokens_into_each_compression"]
        compression = compress(policy, to_steps(batch).slice(0, count))
        recon = reconstruction_loss(policy, compression, config["reward_weight_multiplier"])
    total = action + config["recon_reg_weight"] * recon
    for key, value in (("action", action), ("recon", recon), ("total", total)):
        close(value.detach(), expected[f"loss_{key}"])
    total.backward()
    check_gradients(policy, expected["grad_norms"], "CAD")


def test_ad_gradients(golden, load):
    policy, batch = without_dropout(load("ad")), golden["ad"]["batch_full"]
    F.cross_entropy(training_logits(policy, *inputs(batch)), batch["target_actions"].long()).backward()
    check_gradients(policy, golden["ad"]["out"]["train0_grad_norms"], "AD")


def test_five_steps_of_adamw(golden, load, folder):
    policy, config = without_dropout(load("ad")), PolicyConverter().read(folder / "ad_ckpt-0.pt").settings
    batch, expected = golden["ad"]["batch_full"], golden["ad"]["out"]
    betas = (config["beta1"], config["beta2"])
    optimizer = torch.optim.AdamW(
        policy.parameters(), lr=config["lr"], betas=betas, weight_decay=config["weight_decay"]
    )
    schedule = WarmupCosine(optimizer, 10, 100, start_at_zero=True)
    for step in range(5):
        loss = F.cross_entropy(training_logits(policy, *inputs(batch)), batch["target_actions"].long())
        close(loss.detach(), expected["train0_losses_5steps"][step])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        close(norm, expected["train0_gradnorm_5steps"][step], 1e-4)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def test_ad_acts_as_the_original(golden, load):
    expected = golden["ad"]["out"]["eval_rollout_greedy"]
    env, goals = Darkroom(5, 6), torch.as_tensor(expected["goals"])
    played = rollout(load("ad"), env, goals, [0] * 3, 8, greedy=True, record=True)
    assert torch.equal(played.steps.actions.T, torch.as_tensor(expected["actions"]))
    assert torch.equal(played.returns, torch.as_tensor(expected["reward_episode"], dtype=torch.float32))
    for cached in (True, False):
        logits, _ = act_through(load("ad"), played.steps, cached)
        close(logits.transpose(0, 1), expected["logits"])


@torch.no_grad()
def play(agent: LegacyEncoder | Sound, expected: dict, forced: bool = False) -> list[int]:
    """Act greedily as in the golden rollout and compare; returns the steps in which logits differ."""
    worlds = Darkroom(5, 6).start(torch.as_tensor(expected["goals"]))
    differing, rewards = [], []
    for number, (logits, actions) in enumerate(zip(expected["logits"], expected["actions"], strict=True)):
        results, chosen, states = agent.act(worlds.states), torch.as_tensor(actions), worlds.states
        if not torch.allclose(results, logits, atol=1e-5, rtol=0):
            differing.append(number)
        assert forced or torch.equal(results.argmax(1), chosen)
        step = worlds.step(chosen)
        rewards.append(step.rewards)
        done = step.dones[:, None]
        agent.observe(Steps(states[:, None], chosen[:, None], step.rewards[:, None], step.next_states[:, None], done))
    returns = torch.stack(rewards, 1).view(3, -1, 6).sum(-1)
    assert torch.equal(returns, torch.as_tensor(expected["reward_episode"]).long())
    return differing


class Sound:
    """The policy itself, in the form of the legacy agents."""

    def __init__(self, policy: InContextPolicy) -> None:
        self.policy, self.state, self.step, self.compressed = policy, policy.begin(), 0, []

    def act(self, queries: Tensor) -> Tensor:
        return self.policy.act(self.state, queries)

    def observe(self, step: Steps) -> None:
        before = self.state.compressions
        self.policy.observe(self.state, step)
        self.compressed += [self.step] * (self.state.compressions - before)
        self.step += 1


def test_cad_of_zoo_differs_only_where_the_original_forgets_its_latents(golden, load):
    expected = golden["cad"]["eval_rollout_greedy"]
    agent = Sound(load("cad"))
    assert play(agent, expected, forced=True) == [step + 1 for step in expected["compression_events"]]
    assert agent.compressed == expected["compression_events"]
    close(agent.state.latents, expected["latents"])


@pytest.mark.parametrize(("key", "fixed"), [("eval_rollout_greedy", False), ("eval_rollout_greedy_maskfixed", True)])
def test_earlier_encoder_acts_as_the_original(golden, load, key, fixed):
    expected = golden["cadv1"][key]
    agent = LegacyEncoder(load("cadv1"), fix_mask=fixed)
    assert play(agent, expected) == []
    close(agent.latents, expected["latents"])
    assert agent.compressions == expected["n_latents_calls"] == 28
    other = LegacyEncoder(load("cadv1"), fix_mask=not fixed)
    assert play(other, expected, forced=True)[0] == 20


def test_full_sizes():
    def count(policy: InContextPolicy) -> int:
        return sum(parameter.numel() for parameter in policy.parameters())

    def cad(dim: int, window: int, latents: int, layers: int) -> InContextPolicy:
        compressor, decoder = QueryCompressor(dim, latents, layers), ReconstructionDecoder(dim, layers)
        parts = (LinearEmbedding(dim), Transformer(dim, context=window), compressor, "separate", "full", decoder)
        return InContextPolicy(*parts)

    embedding, transformer = LinearEmbedding(128, norm=True), {"input_norm": True, "final_norm": False}
    earlier = InContextPolicy(
        embedding, Transformer(128, 4, 8, 240, **transformer), EncoderCompressor(), "separate", type_embedding=False
    )
    assert [count(InContextPolicy(LinearEmbedding(32), Transformer(32, context=window))) for window in (240, 250)] == [
        61_669,
        61_989,
    ]
    assert (count(cad(64, 60, 16, 3)), count(cad(32, 100, 36, 4)), count(earlier)) == (808_581, 292_741, 1_502_725)
