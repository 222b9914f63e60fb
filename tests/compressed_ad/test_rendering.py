from __future__ import annotations

from typing import Any

import pytest
import torch

from zoo.compressed_ad.data.demonstrator import EpsilonCurriculum
from zoo.compressed_ad.envs.grids import Darkroom
from zoo.compressed_ad.nets.compression import Compressor, QueryCompressor
from zoo.compressed_ad.nets.embedding import FactoredEmbedding
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.steps import Steps
from zoo.compressed_ad.nets.transformer import Transformer
from zoo.compressed_ad.rendering import attention_weights

ENV = Darkroom(5, 10)
WINDOW, LATENTS = 12, 3


def policy(learned: bool = True, arrangement: Any = "fused", mask: Any = "causal") -> InContextPolicy:
    torch.manual_seed(0)
    compressor: Compressor | None = QueryCompressor(16, LATENTS, 1, 2) if learned else None
    return InContextPolicy(
        FactoredEmbedding(16, 5), Transformer(16, 2, 2, WINDOW), compressor, arrangement, mask
    ).eval()


def histories(episodes: int) -> Steps:
    return EpsilonCurriculum(ENV, episodes).histories(ENV.tasks()[:3], [1, 2, 3])


@pytest.mark.parametrize(
    ("learned", "arrangement", "mask", "tokens"),
    [
        (True, "fused", "causal", WINDOW - 1),  # a full segment of 8 steps behind 3 latents
        (True, "separate", "causal", WINDOW - 2 + 1),
        (True, "separate", "full", WINDOW - 2 + 1),
        (False, "separate", "causal", WINDOW),
    ],
)
def test_weights_are_those_of_the_last_block(learned: bool, arrangement: str, mask: str, tokens: int) -> None:
    net = policy(learned, arrangement, mask)
    weights, latents = attention_weights(net, histories(4))
    assert weights.shape == (3, 2, tokens, tokens) and latents == (LATENTS if learned else 0)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, tokens))
    later = weights.triu(1)
    assert (later[:, :, :latents].sum() > 0) == (mask == "full")
    assert later[:, :, latents:].abs().sum() == 0
