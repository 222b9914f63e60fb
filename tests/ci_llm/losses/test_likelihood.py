"""Task losses against the definition."""

import torch

from zoo.ci_llm.losses.likelihood import losses, token_losses

LOGITS = torch.randn(2, 2, 4, 5, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([[-100, -100, 3, 1], [-100, 2, -100, -100]])


def test_each_position_foretells_the_next_label():
    for agent in range(2):
        places = ((0, 1, 3), (0, 2, 1), (1, 0, 2))
        terms = torch.stack([-LOGITS[agent, text, at].log_softmax(-1)[label] for text, at, label in places])
        torch.testing.assert_close(losses(LOGITS, LABELS)[agent], terms.mean())
        torch.testing.assert_close(losses(LOGITS, LABELS, normaliser=6)[agent], terms.sum() / 6)
        per_text = torch.stack([terms[:2].sum(), terms[2]])
        torch.testing.assert_close(token_losses(LOGITS, LABELS)[agent].sum(-1), per_text)
    assert (token_losses(LOGITS, LABELS) != 0).sum() == 6
    assert token_losses(LOGITS.bfloat16(), LABELS).dtype == torch.float32
