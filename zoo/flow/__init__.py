"""Flow matching: class-conditional images from noise along straight paths (Lipman et al., 2023), with guidance."""

from zoo.common.registry import register

__getattr__, __dir__, __all__ = register(
    __name__,
    {
        "data.datamodule": "FlowData ImageData PointData",
        "data.latents": "LatentData",
        "data.pair_data": "PairData",
        "inference.sampler": "MeanFlowSampler Sampler",
        "nets.autoencoder": "FrozenAutoencoder",
        "nets.dit": "DiT",
        "nets.latent_space": "ImageAutoencoder LatentSpace",
        "nets.mlp": "ToyNet",
        "nets.text": "FrozenText",
        "nets.unet": "UNet",
        "nets.velocity": "VelocityNet",
        "process.coupling": "Coupling OptimalTransport PooledTransport WithinClassTransport",
        "process.conditions": "TextEncoder",
        "process.guidance": "Guidance NestedGuidance",
        "process.image_conditions": "ImageCondition Inpainting SuperResolution",
        "process.paths": "AffinePath ConditionalOT Cosine",
        "process.solvers": "Solver",
        "process.time_samplers": "GridTimes LogitNormalTimes ShiftedTimes TimeSampler UniformTimes",
        "task": "FlowTask MeanFlowTask",
    },
)
