"""Blocks of image nets that several systems share, and the autoencoder of latent diffusion."""

from zoo.common.registry import register

__getattr__, __dir__, __all__ = register(__name__, {"autoencoder": "AutoencoderKL"})
