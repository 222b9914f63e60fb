"""Backbones: frames, masks, truncation, modes; adapters in their places."""

import copy
from pathlib import Path

import pytest
import torch

from tests.miipher.parts import CONFIGS, backbone, cleaner
from zoo.miipher.losses import feature_loss
from zoo.miipher.nets.backbone import Backbone

WAVEFORMS = [name for name in CONFIGS if name not in ("wav2vec2-bert", "gemma3n_audio", "whisper")]


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CONFIGS)
def test_frames_are_the_hops_begun(name):
    net = backbone(name)
    for samples in (1, 639, 640, 6543):
        x = net(noise(2, samples))
        assert x.shape == (2, -(-samples // net.hop_samples), 32) and net.frames(samples) == x.shape[1]
        assert x.isfinite().all()


def test_without_padding_frames_are_the_originals():
    net = backbone(pad=False)
    assert net(noise(1, 6543)).shape[1] == net.frames(6543) == 20
    with pytest.raises(ValueError, match="400"):
        net(noise(1, 399))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_padded_clip_gives_what_it_gives_alone(name):
    net = cleaner(name)
    long, short = noise(1, 6400), noise(1, 3333, seed=1)
    batch = torch.cat([long, torch.nn.functional.pad(short, (0, 6400 - 3333), value=0.3)])
    both = net(batch, torch.tensor([6400, 3333]))
    frames = net.frames(3333)
    torch.testing.assert_close(both[:1], net(long), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(both[1:, :frames], net(short), atol=1e-4, rtol=1e-4)
    assert both[1, frames:].abs().max() == 0


@pytest.mark.parametrize("name", WAVEFORMS)
def test_truncation_gives_the_hidden_state_of_the_whole(name):
    full = backbone(name, layer=3)
    part = backbone(name, layer=2)
    separate = full.model.state_dict()
    part.model.load_state_dict({key: separate[key] for key in part.model.state_dict()})
    assert len(part.blocks) == 2
    remaining = []
    full.blocks[1].register_forward_hook(lambda *args: remaining.append(args[2]))
    x = noise(1, 3200)
    full(x)
    expected = remaining[0][0] if isinstance(remaining[0], tuple) else remaining[0]
    torch.testing.assert_close(part(x), expected)


def test_closing_norm_is_a_choice():
    x = noise(1, 3200)
    plain, normed = backbone("hubert_preln", 3), backbone("hubert_preln", 3, final_norm=True)
    torch.testing.assert_close(normed(x), torch.nn.functional.layer_norm(plain(x), (32,)), atol=1e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="last block"):
        backbone("hubert_preln", 2, final_norm=True)


@pytest.mark.parametrize("name", CONFIGS)
def test_saved_and_read_again(name, tmp_path: Path):
    net = backbone(name, seed=3)
    net.save_source(tmp_path / "run" / "backbone")
    again = Backbone(layer=2, source=str(tmp_path))
    assert again.family == net.family
    x = noise(1, 3200)
    torch.testing.assert_close(again(x), net(x))
    assert again.fingerprint() == net.fingerprint() != backbone(name, seed=4).fingerprint()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 4}, "layer"),
        ({"source": "runs/nowhere", "config": None}, "runs/nowhere"),
        ({"config": {"model_type": "gpt2"}}, "gpt2"),
    ],
)
def test_wrong_settings_are_named(arguments, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        Backbone(**{"layer": 2, "config": dict(CONFIGS["hubert"]), **arguments})


@pytest.mark.parametrize("name", CONFIGS)
def test_adapters_change_the_features_and_can_be_left_out(name):
    net = cleaner(name)
    x = noise(1, 6400)
    torch.testing.assert_close(net.target(x), backbone(name)(x))
    assert (net(x) - net.target(x)).abs().max() > 1e-2


def test_parallel_adapter_by_hand():
    net = cleaner(layer=1)
    block, adapter, norm = net.backbone.blocks[0], net.adapters.blocks[0], net.adapters.norms[0]
    torch.nn.init.normal_(norm.weight)
    inputs = []
    block.feed_forward.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    out = net(noise(1, 3200))
    u = inputs[0]
    hidden = torch.nn.functional.gelu(adapter.down(torch.nn.functional.layer_norm(u, (32,))))
    ffn = block.feed_forward.output_dense(torch.nn.functional.gelu(block.feed_forward.intermediate_dense(u)))
    expected = torch.nn.functional.layer_norm(u + ffn + adapter.up(hidden), (32,), norm.weight, norm.bias)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("name", ["hubert", "hubert_preln", "wavlm", "wav2vec2-bert", "whisper"])
def test_gradients_reach_adapters_only_with_checkpointing_or_without(name):
    net = cleaner(name, gradient_checkpointing=True).train()
    net(noise(2, 3200)).square().mean().backward()
    grads = {key: p.grad for key, p in net.named_parameters() if p.requires_grad}
    assert all(key.startswith("adapters.") for key in grads)
    assert all(grad is not None and grad.abs().sum() > 0 for grad in grads.values())
    reference = cleaner(name)
    reference.load_state_dict(net.state_dict())
    reference(noise(2, 3200)).square().mean().backward()
    for key, parameter in reference.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(grads[key], parameter.grad)


def test_a_copy_has_its_own_adapters():
    net = cleaner()
    other = copy.deepcopy(net)
    torch.nn.init.zeros_(other.adapters.blocks[0].up.weight)
    x = noise(1, 3200)
    assert not torch.allclose(net(x), other(x))
    torch.testing.assert_close(net.target(x), other.target(x))


def test_whispers_encoder_out_of_a_folder_of_the_recogniser(tmp_path: Path):
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    torch.manual_seed(1)
    recogniser = WhisperForConditionalGeneration(WhisperConfig(**CONFIGS["whisper"])).eval()
    recogniser.save_pretrained(tmp_path)
    net = Backbone(layer=3, source=str(tmp_path), final_norm=True)
    x = noise(1, 30 * 16000)
    # Whisper centres its first frame on sample 0, we ours in the middle of its hop
    inputs = WhisperFeatureExtractor()(x[0, 160:].numpy(), sampling_rate=16000, return_tensors="pt")
    expected = recogniser.get_encoder()(inputs["input_features"]).last_hidden_state
    torch.testing.assert_close(net(x)[:, 2:-2], expected[:, 2:-2], atol=2e-2, rtol=2e-2)
    with pytest.raises(ValueError, match="at most 30 s"):
        net(noise(1, 30 * 16000 + 1))


def test_feature_loss_counts_valid_frames_alone():
    target = torch.ones(2, 3, 2)
    prediction = target + torch.tensor([[1.0, 2.0, 100.0], [1.0, 100.0, 100.0]])[..., None]
    terms = feature_loss(prediction, target, torch.tensor([2, 1]), "batch")
    assert float(terms["mae"]) == pytest.approx(4 / 3)
    assert float(terms["mse"]) == pytest.approx(6 / 3)
    assert float(terms["sc"]) == pytest.approx(12 / 6)
    full = feature_loss(prediction[:1, :2], target[:1], torch.tensor([3]), "item")
    assert float(full["mae"]) == pytest.approx(1.5)
