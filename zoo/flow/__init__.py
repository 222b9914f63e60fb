"""Flow matching: class-conditional images from noise along straight paths (Lipman et al., 2023), with guidance."""

from zoo.common.registry import public

__getattr__, __all__ = public(
    __name__,
    {
        "coupling": "Coupling Independent OptimalTransport PooledTransport WithinClassTransport",
        "data": "FlowData ImageData PointData",
        "guidance": "Guidance",
        "mlp": "ToyNet",
        "pair_data": "PairData",
        "paths": "AffinePath ConditionalOT Cosine LinearVariancePreserving Polynomial VariancePreserving",
        "sampler": "Sampler",
        "sequence_data": "FeatureData MelData SequenceData",
        "sequence_net": "Conditioned SequenceNet",
        "sequence_normaliser": "Normaliser",
        "sequence_restore": "SequenceRestorer",
        "sequence_task": "SequenceTask",
        "solvers": "Solver",
        "task": "FlowTask",
        "time_samplers": "EdmSkewedTimes GridTimes LogitNormalTimes TimeSampler UShapedTimes UniformTimes",
        "unet": "UNet",
        "velocity": "VelocityNet",
    },
)
