from pathlib import Path

import pytest
import torch

from tests.flow.conditions import T5, text
from zoo.flow.nets.text import FrozenText

SIZES = {"vocab_size": 384, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
CLIP = {"model_type": "clip_text_model", "max_position_embeddings": 8, "eos_token_id": 1, **SIZES}
BERT = {"model_type": "bert", "max_position_embeddings": 8, **SIZES}
PROMPTS = ["a cat", "", "what is longer is cut"]


@pytest.mark.parametrize("config", [T5, CLIP, BERT], ids=lambda config: config["model_type"])
def test_states_and_the_way_through_a_folder(config: dict, tmp_path: Path) -> None:
    before = torch.random.get_rng_state()
    encoder = FrozenText(config=config, max_tokens=8, chunk=2)
    assert torch.equal(torch.random.get_rng_state(), before) and not any(p.requires_grad for p in encoder.parameters())
    result = encoder.encode(PROMPTS)
    assert result["tokens"].shape == (3, 8, encoder.width) and result["pooled"].shape == (3, encoder.width)
    assert result["mask"].sum(dim=1).tolist() == [6, 1, 8]  # bytes and their end
    assert not result["tokens"][~result["mask"]].any()
    alone = encoder.encode(PROMPTS[:1])
    for name, value in alone.items():
        torch.testing.assert_close(value[0].float(), result[name][0].float(), atol=2e-3, rtol=2e-3)
    assert torch.equal(encoder.null()["tokens"], encoder.encode([""])["tokens"]) and encoder.null() is encoder.null()
    encoder.save_source(tmp_path)
    again = FrozenText(str(tmp_path), max_tokens=8, chunk=2)
    assert again.fingerprint() == encoder.fingerprint()
    assert all(torch.equal(value, result[name]) for name, value in again.encode(PROMPTS).items())
    assert not encoder.train().training


def test_the_vector_is_the_mean_of_tokens_where_the_encoder_has_none() -> None:
    result = text().encode(["ab"])
    mean = result["tokens"][0, result["mask"][0]].mean(dim=0)
    torch.testing.assert_close(result["pooled"][0], mean, atol=1e-3, rtol=1e-3)
