import torch

from zoo.compressed_ad.losses import reconstruction_loss
from zoo.compressed_ad.nets.compression import FieldDecoder, QueryCompressor, ReconstructionDecoder
from zoo.compressed_ad.nets.embedding import FactoredEmbedding
from zoo.compressed_ad.nets.policy import InContextPolicy
from zoo.compressed_ad.nets.steps import Steps
from zoo.compressed_ad.nets.transformer import Transformer

DIM, GRID = 16, 5


def build(decoder: ReconstructionDecoder | None) -> InContextPolicy:
    torch.manual_seed(0)
    parts = (FactoredEmbedding(DIM, GRID), Transformer(DIM, 1, 2, 12, dropout=0.0))
    return InContextPolicy(*parts, QueryCompressor(DIM, 3, 1, 2, dropout=0.0), decoder=decoder)


def histories(batch: int, length: int) -> Steps:
    generator = torch.Generator().manual_seed(length)

    def draw(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(high, (batch, length, *shape), generator=generator)

    return Steps(draw(GRID, 2), draw(5), draw(2), draw(GRID, 2), draw(2).bool())


class Silent(ReconstructionDecoder):
    """Gives back nothing but zeros."""

    def forward(self, latents: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return latents.new_zeros(len(latents), len(positions), latents.shape[2])


def test_error_of_tokens_counts_rewarded_transitions_more_and_old_latents_once() -> None:
    policy = build(Silent(DIM))
    for compression in policy(histories(2, 30)).compressions:
        errors = compression.tokens.square().mean(-1)
        plain = reconstruction_loss(policy, compression)
        torch.testing.assert_close(plain, errors.mean())
        old = compression.tokens.shape[1] - compression.steps.length
        weights = torch.ones_like(errors)
        weights[:, old:] += 4 * (compression.steps.rewards > 0)
        torch.testing.assert_close(reconstruction_loss(policy, compression, 5.0), (weights * errors).mean())


def test_fields_are_reported_as_classes() -> None:
    policy = build(FieldDecoder(DIM, GRID, positions=None, heads=2, dropout=0.0))
    torch.nn.init.zeros_(policy.decoder.fields.weight)
    torch.nn.init.zeros_(policy.decoder.fields.bias)
    uniform = torch.tensor([5.0, 5, 5, 2, 5, 5]).log().mean()
    for compression in policy(histories(2, 30)).compressions:
        torch.testing.assert_close(reconstruction_loss(policy, compression), uniform)
        rewarded = (compression.steps.rewards > 0).float().mean()
        torch.testing.assert_close(reconstruction_loss(policy, compression, 3.0), uniform * (1 + 2 * rewarded))
