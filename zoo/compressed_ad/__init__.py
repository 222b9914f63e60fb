"""CompressedAD: a frozen transformer learns a new task in its context, old context compressed to latent tokens."""

from zoo.common.registry import public

__getattr__, __all__ = public(
    __name__,
    {
        "data.curriculum": "Curriculum",
        "data.datamodule": "HistoryData",
        "data.demonstrator": "EpsilonCurriculum",
        "envs.grids": "DarkKeyToDoor Darkroom DarkroomPermuted Env",
        "inference": "Agent",
        "nets.compression": (
            "Compressor EncoderCompressor FieldDecoder Forget KeepAttended KeepRecent KeepUniform QueryCompressor "
            "ReconstructionDecoder"
        ),
        "nets.embedding": "FactoredEmbedding LinearEmbedding StepEmbedding",
        "nets.policy": "InContextPolicy",
        "nets.transformer": "Transformer",
        "rendering": "AttentionMaps",
        "task": "DistillationTask PolicyTask PretrainTask",
    },
)
