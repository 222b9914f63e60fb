"""Blocks of image nets that several systems share, and the autoencoder of latent diffusion."""

from zoo.common.registry import register_components

__getattr__, __all__ = register_components(__name__, {"autoencoder": "AutoencoderKL"})
