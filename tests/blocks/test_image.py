import torch
from torch import nn

from zoo.blocks.image import classifier_free_guidance, multi_head_attention, pixel_attention


def test_guidance_scales_and_brings_the_deviation_back():
    conditional, unconditional = torch.randn(2, 3, 4, 5)
    guided = classifier_free_guidance(conditional, unconditional, 3.5)
    torch.testing.assert_close(guided, 3.5 * conditional - 2.5 * unconditional, atol=1e-5, rtol=0)
    spread = classifier_free_guidance(conditional, unconditional, 3.5, rescale=1.0).std(dim=(1, 2))
    torch.testing.assert_close(spread, conditional.std(dim=(1, 2)))
    half = classifier_free_guidance(conditional, unconditional, 3.5, rescale=0.5)
    full = classifier_free_guidance(conditional, unconditional, 3.5, rescale=1.0)
    torch.testing.assert_close(half, (guided + full) / 2)


def test_attention_to_equal_keys_is_the_mean_of_the_values():
    x = torch.randn(2, 3, 4, 5)
    equal = nn.Conv2d(3, 3, 1)
    nn.init.zeros_(equal.weight)
    results = pixel_attention(x, nn.Identity(), nn.Identity(), equal, nn.Identity(), nn.Identity())
    torch.testing.assert_close(results, x + x.mean(dim=(2, 3), keepdim=True))
    tokens = torch.randn(2, 5, 6)
    results = multi_head_attention(tokens, torch.zeros_like(tokens), tokens, heads=3)
    torch.testing.assert_close(results, tokens.mean(dim=1, keepdim=True).expand(-1, 5, -1))
