import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.flow.nets.dit import SIZES, DiT, grid_angles, rotate, sine_table

COUNTS = {"S": 32_865_056, "B": 130_315_808, "L": 457_840_672, "XL": 674_834_720}  # with 8 outputs, 1001 classes


def small(**arguments) -> DiT:
    torch.manual_seed(0)
    options = {"image_resolution": 8, "in_channels": 3, "depth": 2, "dim": 32, "heads": 2, "num_classes": 3}
    return DiT(**{**options, **arguments})


def awake(net: DiT) -> DiT:
    """The net with weights that let every part show in the output."""
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.2)
    return net.eval()


@pytest.fixture
def batch() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(3, 3, 8, 8), torch.tensor([0.1, 0.5, 0.9]), torch.tensor([1, 0, 3])


@pytest.mark.parametrize("size", COUNTS)
def test_parameters_of_the_paper(size):
    with torch.device("meta"):
        net = DiT(size=size, num_classes=1000)
    variances = 2 * 2 * 4 * (SIZES[size][1] + 1)  # of the tail, which SiT discards
    assert sum(each.numel() for each in net.parameters()) + variances == COUNTS[size]


def by_hand(net: DiT, x: Tensor, t: Tensor, label: Tensor) -> Tensor:
    """The net by plain formulas, patch by patch and head by head."""
    weights, patch, dim = net.state_dict(), net.patch, net.dim

    def linear(name: str, value: Tensor) -> Tensor:
        return value @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normed(value: Tensor) -> Tensor:
        mean, variance = value.mean(-1, keepdim=True), value.var(-1, keepdim=True, correction=0)
        return (value - mean) / (variance + 1e-6).sqrt()

    images = []
    for image, time, number in zip(x, t, label, strict=True):
        waves = [net.time_scale * float(time) * 10000 ** (-i / 128) for i in range(128)]
        embedded = torch.tensor([math.cos(w) for w in waves] + [math.sin(w) for w in waves])
        vector = linear("time_embedding.mlp.2", functional.silu(linear("time_embedding.mlp.0", embedded)))
        vector = functional.silu(vector + weights["class_embedding.weight"][number])
        rows, columns = (side // patch for side in image.shape[1:])
        tokens = []
        for i in range(rows):
            for j in range(columns):
                cut = image[:, i * patch : (i + 1) * patch, j * patch : (j + 1) * patch]
                token = weights["patches.weight"].flatten(1) @ cut.flatten() + weights["patches.bias"]
                for half, place in ((0, j), (1, i)):  # the column is first
                    for k in range(dim // 4):
                        angle = place * 10000 ** (-k / (dim / 4))
                        token[half * dim // 2 + k] += math.sin(angle)
                        token[half * dim // 2 + dim // 4 + k] += math.cos(angle)
                tokens.append(token)
        h = torch.stack(tokens)
        for block in range(len(net.blocks)):
            name = f"blocks.{block}"
            shift, scale, gate, shift_f, scale_f, gate_f = linear(f"{name}.modulation.linear", vector).split(dim)
            query, key, value = linear(f"{name}.qkv", normed(h) * (1 + scale) + shift).split(dim, dim=1)
            width, results = dim // net.heads, []
            for head in range(net.heads):
                part = slice(head * width, (head + 1) * width)
                weight = (query[:, part] @ key[:, part].T / width**0.5).softmax(dim=1)
                results.append(weight @ value[:, part])
            h = h + gate * linear(f"{name}.out", torch.cat(results, dim=1))
            hidden = linear(f"{name}.feed_forward.0", normed(h) * (1 + scale_f) + shift_f)
            hidden = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
            h = h + gate_f * linear(f"{name}.feed_forward.2", hidden)
        shift, scale = linear("norm.linear", vector).split(dim)
        out = linear("tail", normed(h) * (1 + scale) + shift)
        result = torch.zeros_like(image)
        for index, token in enumerate(out):
            i, j = divmod(index, columns)
            cut = token.reshape(patch, patch, -1).permute(2, 0, 1)
            result[:, i * patch : (i + 1) * patch, j * patch : (j + 1) * patch] = cut
        images.append(result)
    return torch.stack(images)


def test_equals_the_formulas(batch):
    x, t, label = batch
    net = awake(small(time_scale=1.0))
    with torch.no_grad():
        torch.testing.assert_close(net(x[:, :, :6], t, label), by_hand(net, x[:, :, :6], t, label), atol=1e-4, rtol=0)


@pytest.mark.parametrize("arguments", [{}, {"positions": "rope", "qk_norm": True}], ids=str)
def test_starts_as_zero_with_idle_blocks(batch, arguments):
    net = small(**arguments, context_dim=5, condition_channels=2, pooled_dim=5, spans=True)
    conditions = {"tokens": torch.randn(3, 4, 5), "mask": torch.ones(3, 4), "pooled": torch.randn(3, 5)}
    conditions |= {"image": torch.randn(3, 2, 8, 8), "span": torch.rand(3)}
    assert not net(*batch, conditions).any()
    h = torch.randn(3, 16, 32)
    block = net.blocks[0]
    assert torch.equal(block(h, torch.randn(3, 32), None, conditions["tokens"]), h)
    assert not net.condition_patches(conditions["image"]).any()
    awake(net)  # each condition then has a say
    reference = net(*batch, conditions)
    for name, value in conditions.items():
        other = torch.cat([torch.zeros(3, 1), value[:, 1:]], 1) if name == "mask" else value + 0.3
        assert (net(*batch, {**conditions, name: other}) - reference).abs().max() > 1e-3, name
    masked = {**conditions, "mask": torch.tensor([[1, 1, 0, 0]] * 3)}
    cut = {**masked, "tokens": conditions["tokens"][:, :2], "mask": masked["mask"][:, :2]}
    torch.testing.assert_close(net(*batch, masked), net(*batch, cut), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("positions", ["sincos", "rope"])
def test_sizes_and_labels(positions, batch):
    x, t, label = batch
    net = awake(small(positions=positions))
    assert net(torch.randn(1, 3, 10, 4), 0.5).shape == (1, 3, 10, 4)
    mixed = net(x, t, torch.tensor([1, -1, 0]))
    torch.testing.assert_close(mixed[1], net(x, t)[1])
    assert (mixed[2] - net(x, t)[2]).abs().max() > 1e-3
    assert net.bfloat16()(x.bfloat16(), t, label).dtype == torch.bfloat16


def test_rotary_attention_depends_on_offsets_only():
    angles = grid_angles(5, 6, 8).flatten(1)
    query, key = torch.randn(1, 8), torch.randn(1, 8)
    turned = [rotate(each.expand(30, 8), (angles.cos(), angles.sin())) for each in (query, key)]
    logits = (turned[0] @ turned[1].T).reshape(5, 6, 5, 6)
    torch.testing.assert_close(logits[:-1, :-1, :-1, :-1], logits[1:, 1:, 1:, 1:], atol=1e-4, rtol=1e-4)
    assert logits[0, 0].std() > 1e-3
    assert torch.equal(sine_table(2, 3, 8)[4], sine_table(5, 3, 8)[4])  # a cell keeps its place on a larger grid
