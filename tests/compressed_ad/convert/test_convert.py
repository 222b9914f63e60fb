from typing import Any

import numpy as np
import pytest
import torch

from tests.harness import same_state
from zoo.compressed_ad import FactoredEmbedding, InContextPolicy, LinearEmbedding, Transformer
from zoo.compressed_ad.convert import describe, from_original, is_original, original_state, to_original
from zoo.compressed_ad.convert.converter import to_original_state
from zoo.compressed_ad.nets import compression

DIM, GRID, WINDOW, K = 12, 4, 11, 3
KINDS = ("AD", "CAD", "v1")
CONFIG = {"env": "dark_key_to_door", "horizon": 7, "tf_n_head": 2, "compress_n_heads": 3, "encoder_n_head": 6}


def policy_of(kind: str, **changes: Any) -> InContextPolicy:
    """A policy that the original has as well; sizes differ from its defaults and from one another."""
    torch.manual_seed(0)
    earlier = kind == "v1"
    arguments: dict[str, Any] = {
        "embedding": LinearEmbedding(DIM, GRID, 5, norm=earlier),
        "transformer": Transformer(DIM, 3, 2, WINDOW, 20, 0.0, input_norm=earlier, final_norm=not earlier),
        "arrangement": "separate",
        "latent_mask": "full",
    }
    if kind == "CAD":
        arguments["compressor"] = compression.QueryCompressor(DIM, K, 2, 3, 28, max_tokens=50)
        arguments["decoder"] = compression.ReconstructionDecoder(DIM, 2, 3, 28, max_tokens=30)
    elif earlier:
        arguments |= {"compressor": compression.EncoderCompressor(DIM, K, 2, 6, 28, max_tokens=50)}
        arguments |= {"type_embedding": False}
    return InContextPolicy(**{**arguments, **changes}).eval()


def content_of(policy: InContextPolicy, kind: str) -> dict[str, Any]:
    """A checkpoint as the original writes it, of a compiled net in DDP."""
    model = {f"module._orig_mod.{key}": value for key, value in to_original_state(policy.state_dict(), kind).items()}
    config = {**CONFIG, "device": torch.device("cpu"), "max_reward": np.int64(20)}
    return {"step": 40, "config": config, "model": model}


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_and_names(tmp_path, kind):
    policy = policy_of(kind)
    torch.save(content_of(policy, kind), tmp_path / "ckpt-40.pt")
    again = from_original(tmp_path / "ckpt-40.pt")
    assert same_state(policy, again) and not again.training
    facts = describe(tmp_path / "ckpt-40.pt")
    assert facts["format"] == kind and facts["step"] == 40 and facts["settings in the file"]["max_reward"] == 20
    assert set(original_state(tmp_path / "ckpt-40.pt")) == {f"policy.{key}" for key in policy.state_dict()}


def test_pretrained_compressor(tmp_path):
    content = content_of(policy_of("CAD"), "CAD")
    parts = ("compression_transformer", "reconstruction_decoder", "embed_context")
    content["model"] = {key: value for key, value in content["model"].items() if key.split(".")[2] in parts}
    torch.save(content, tmp_path / "pretrain-final.pt")
    assert is_original(tmp_path / "pretrain-final.pt")
    assert describe(tmp_path / "pretrain-final.pt")["format"] == "pre-trained compressor of CAD"
    state = original_state(tmp_path / "pretrain-final.pt")
    actual = policy_of("CAD").state_dict()
    assert {key.split(".")[1] for key in state} == {"compressor", "decoder", "embedding"}
    assert all(torch.equal(value, actual[key.removeprefix("policy.")]) for key, value in state.items())
    with pytest.raises(ValueError, match="init_from"):
        from_original(tmp_path / "pretrain-final.pt")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latent_mask": "causal"}, "latent_mask"),
        ({"compressor": compression.Forget()}, "compressor"),
        ({"decoder": compression.ReconstructionDecoder(DIM, 1, 1, WINDOW)}, "decoder's layers"),
        ({"embedding": FactoredEmbedding(DIM, GRID), "arrangement": "fused", "latent_mask": "causal"}, "embedding"),
        ({"transformer": Transformer(DIM, 1, 2, WINDOW, activation="relu")}, "activation"),
    ],
)
def test_policies_that_the_original_does_not_have_are_refused(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        to_original(policy_of("CAD", **changes), tmp_path / "a.pt")
    assert not (tmp_path / "a.pt").exists()
