"""AudioSR: latent-diffusion audio super-resolution with global context."""

from zoo.common.registry import public

__getattr__, __all__ = public(
    __name__,
    {
        "data": "SuperResolutionData",
        "denoiser": "Denoiser",
        "diffusion": "CosineDiffusion",
        "discriminator": "PatchDiscriminator",
        "features": "MelFeatures",
        "global_encoder": "GlobalEncoder",
        "losses": "AutoencoderTerm DiffusionTerm KL Latent LossTerm MelL1 MultiResolutionSTFT Reconstruction Spectral",
        "original_files": "OriginalFiles",
        "parts": "FrozenAutoencoder FrozenVocoder",
        "reconstruct": "Reconstructor",
        "restore": "Restorer",
        "samplers": "DDIM DPMSolver Sampler",
        "schedules": "OriginalWarmupCosine",
        "simulate": "Simulation",
        "task": "DiffusionTask",
        "task_vae": "AdversarialAutoencoderTask AutoencoderTask",
        "unet": "UNet",
        "vae": "Autoencoder",
    },
)
