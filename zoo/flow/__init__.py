"""Flow matching: class-conditional images from noise along straight paths (Lipman et al., 2023), with guidance."""

from zoo.common.registry import register

__getattr__, __dir__, __all__ = register(
    __name__,
    {
        "data.datamodule": "FlowData ImageData PointData",
        "data.glyphs": "Glyphs",
        "data.latents": "LatentData",
        "data.pair_data": "PairData",
        "evaluation.validation_metrics": "FeatureMetrics",
        "inference.reconstructor": "Reconstructor",
        "inference.sampler": "MeanFlowSampler Sampler",
        "losses": "MinSnr",
        "nets.autoencoder": "FrozenAutoencoder LatentSpace",
        "nets.dit": "DiT",
        "nets.frozen": "FrozenNet",
        "nets.mlp": "ToyNet",
        "nets.text": "FrozenText",
        "nets.unet": "UNet",
        "nets.velocity": "VelocityNet",
        "process.coupling": "Coupling OptimalTransport PooledTransport WithinClassTransport",
        "process.guidance": "Autoguidance Guidance NestedGuidance",
        "process.image_conditions": "ImageCondition Inpainting SourceImage SuperResolution",
        "process.paths": "AffinePath ConditionalOT Cosine",
        "process.solvers": "Solver",
        "process.time_samplers": "GridTimes LogitNormalTimes ShiftedTimes TimeSampler UniformTimes",
        "task": "FlowTask MeanFlowTask",
        "task_vae": "AutoencoderTask",
        "validation_samples": "SampleMetrics",
    },
)
