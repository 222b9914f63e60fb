import torch

from tests.compressed_ad.parts import DIM, histories, policy
from zoo.compressed_ad.losses import reconstruction_loss
from zoo.compressed_ad.nets.compression import ReconstructionDecoder


class Silent(ReconstructionDecoder):
    """Gives back nothing but zeros."""

    def forward(self, latents: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return latents.new_zeros(len(latents), len(positions), latents.shape[2])


def test_error_of_tokens_counts_rewarded_transitions_more_and_old_latents_once() -> None:
    net = policy(3, decoder=Silent(DIM))
    for compression in net(histories(2, 30)).compressions:
        errors = compression.tokens.square().mean(-1)
        plain = reconstruction_loss(net, compression)
        torch.testing.assert_close(plain, errors.mean())
        old = compression.tokens.shape[1] - compression.steps.length
        weights = torch.ones_like(errors)
        weights[:, old:] += 4 * (compression.steps.rewards > 0)
        torch.testing.assert_close(reconstruction_loss(net, compression, 5.0), (weights * errors).mean())
