"""CompressedAD: a frozen transformer learns a new task in its context, old context compressed to latent tokens."""

from zoo.common.registry import register

__getattr__, __dir__, __all__ = register(
    __name__,
    {
        "data.curriculum": "Curriculum",
        "data.datamodule": "HistoryData",
        "data.demonstrator": "EpsilonCurriculum",
        "envs.base": "Env RecordedEnv",
        "envs.grids": "DarkKeyToDoor Darkroom DarkroomPermuted GridEnv",
        "envs.gymnasium_env": "GymnasiumEnv",
        "envs.point_mass": "PointMass",
        "inference": "Agent",
        "nets.compression": "Compressor EncoderCompressor FieldDecoder Forget QueryCompressor ReconstructionDecoder",
        "nets.embedding": "FactoredEmbedding GridEmbedding LinearEmbedding SpaceEmbedding StepEmbedding",
        "nets.heads": "ActionHead BinsHead CategoricalHead",
        "nets.policy": "InContextPolicy",
        "nets.transformer": "Transformer",
        "task": "DistillationTask PolicyTask PretrainTask",
    },
)
