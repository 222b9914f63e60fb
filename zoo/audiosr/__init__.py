"""AudioSR: latent-diffusion audio super-resolution with global context."""

from zoo.common.registry import register

__getattr__, __dir__, __all__ = register(
    __name__,
    {
        "loss_monitor": "LossMonitor",
        "data.datamodule": "SuperResolutionData",
        "data.simulate": "Simulation",
        "diffusion": "CosineDiffusion Sampler",
        "inference.reconstruct": "Reconstructor",
        "inference.restore": "Restorer",
        "losses": (
            "AutoencoderTerm CleanLatent DiffusionTerm KL Latent LossTerm MelL1 MultiResolutionSTFT Reconstruction "
            "Spectral"
        ),
        "nets.denoiser": "Denoiser GlobalEncoder",
        "nets.discriminator": "PatchDiscriminator",
        "nets.features": "MelFeatures",
        "nets.frozen": "FrozenAutoencoder FrozenVocoder",
        "nets.unet": "UNet",
        "samplers": "DDIM DPMSolver",
        "task": "DiffusionTask",
        "task_distill": "DistillationTask FrozenDenoiser",
        "task_autoencoder": "AdversarialAutoencoderTask AutoencoderTask",
    },
)
