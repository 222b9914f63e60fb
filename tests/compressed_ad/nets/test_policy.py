import pytest
import torch

from tests.compressed_ad import parts
from tests.compressed_ad.parts import WINDOW, histories
from zoo.compressed_ad import EncoderCompressor, Forget, InContextPolicy, QueryCompressor
from zoo.compressed_ad.nets.steps import Steps

COMPRESSORS = {
    "learned": lambda: QueryCompressor(parts.DIM, 3, 1, 2),
    "encoder": lambda: EncoderCompressor(parts.DIM, 3, 1, 2),
    "forget": Forget,
}


def policy(compressor: str | None = None, arrangement: str = "fused", mask: str = "causal") -> InContextPolicy:
    made = None if compressor is None else COMPRESSORS[compressor]()
    return parts.policy(depth=2, compressor=made, arrangement=arrangement, latent_mask=mask).eval()


def act_through(net: InContextPolicy, steps: Steps, cached: bool) -> tuple[torch.Tensor, list[int]]:
    state, logits, compressed = net.begin(cached), [], []
    for t in range(steps.length):
        logits.append(net.act(state, steps.states[:, t]))
        before = state.compressions
        net.observe(state, steps.slice(t, t + 1))
        compressed += [t] * (state.compressions - before)
    return torch.stack(logits, 1), compressed


@pytest.mark.parametrize("arrangement", ["fused", "separate"])
@pytest.mark.parametrize("compressor", COMPRESSORS)
@torch.no_grad()
def test_training_and_acting_compute_the_same(compressor: str, arrangement: str) -> None:
    net, steps = policy(compressor, arrangement), histories(2, 40)
    output = net(steps)
    for cached in (True, False):
        logits, compressed = act_through(net, steps, cached)
        torch.testing.assert_close(logits, output.logits, atol=1e-5, rtol=1e-5)
        assert compressed == [10 + n * (11 - net.num_latents) for n in range(len(compressed))]
    assert len(output.compressions) == len(compressed) == (3 if net.num_latents == 0 else 4)


@pytest.mark.parametrize("arrangement", ["fused", "separate"])
@torch.no_grad()
def test_without_a_compressor_the_window_slides(arrangement: str) -> None:
    net, steps = policy(None, arrangement), histories(2, 30)
    logits, _ = act_through(net, steps, True)
    torch.testing.assert_close(logits[:, :WINDOW], net(steps.slice(0, WINDOW)).logits, atol=1e-5, rtol=1e-5)
    for end in (13, 30):
        window = net(steps.slice(end - WINDOW, end)).logits[:, -1]
        torch.testing.assert_close(logits[:, end - 1], window, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="13 steps do not fit the window of 12"):
        net(steps.slice(0, 13))


@torch.no_grad()
def test_the_full_mask_computes_the_last_step_alone() -> None:
    net, steps = policy("learned", "separate", "full"), histories(2, 25)
    last = net(steps, last_only=True).logits[:, 0]
    torch.testing.assert_close(last, act_through(net, steps, True)[0][:, -1], atol=1e-5, rtol=1e-5)
    causal = policy("learned", "separate")
    causal.load_state_dict(net.state_dict())
    assert not torch.equal(causal(steps, last_only=True).logits[:, 0], last)
    with pytest.raises(ValueError, match="only the last step trains"):
        net(steps)


@pytest.mark.parametrize("rounds", [None, 0, 1, 2, 3])
def test_gradients_flow_through_so_many_compressions(rounds: int | None) -> None:
    net, steps = policy("learned"), histories(1, 11 + 3 * 8)
    net.embedding.requires_grad_(False)
    output = net(steps, rounds)
    for compression_ in output.compressions:
        compression_.latents.retain_grad()
    output.logits[:, -1].sum().backward()
    reached = [each.latents.grad is not None and bool(each.latents.grad.any()) for each in output.compressions]
    newest = [False, False, True]
    expected = {None: [True] * 3, 0: [False] * 3, 1: newest, 2: newest, 3: [True] * 3}  # groups from the first on
    assert reached == expected[rounds]
    assert net.compressor is not None
    trained = any(each.grad is not None and each.grad.any() for each in net.compressor.parameters())
    assert trained is (rounds != 0)
