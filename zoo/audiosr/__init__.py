"""AudioSR: latent-diffusion audio super-resolution with global context."""

from zoo.common.registry import register

__getattr__, __dir__, __all__ = register(
    __name__,
    {
        "loss_monitor": "LossMonitor",
        "data.datamodule": "SuperResolutionData",
        "data.simulate": "Simulation",
        "diffusion.samplers": "DDIM DPMSolver Sampler",
        "diffusion.schedule": "CosineDiffusion",
        "inference.reconstruct": "Reconstructor",
        "inference.restore": "Restorer",
        "losses": (
            "AutoencoderTerm CleanLatent DiffusionTerm KL Latent LossTerm MelL1 MultiResolutionSTFT Reconstruction "
            "Spectral"
        ),
        "nets.denoiser": "Denoiser",
        "nets.discriminator": "PatchDiscriminator",
        "nets.features": "MelFeatures",
        "nets.frozen": "FrozenAutoencoder FrozenDenoiser FrozenVocoder",
        "nets.global_encoder": "GlobalEncoder",
        "nets.unet": "UNet",
        "task": "DiffusionTask",
        "task_distill": "DistillationTask",
        "task_autoencoder": "AdversarialAutoencoderTask AutoencoderTask",
    },
)
