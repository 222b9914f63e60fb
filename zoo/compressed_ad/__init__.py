"""CompressedAD: a frozen transformer learns a new task in its context, old context compressed to latent tokens."""

from zoo.common.registry import public

__getattr__, __all__ = public(
    __name__,
    {
        "agent": "Agent",
        "attention_maps": "AttentionMaps",
        "compression": (
            "Compressor EncoderCompressor Forget KeepAttended KeepRecent KeepUniform QueryCompressor "
            "ReconstructionDecoder"
        ),
        "curriculum": "Curriculum",
        "data": "HistoryData",
        "demonstrator": "EpsilonCurriculum",
        "embedding": "FactoredEmbedding LinearEmbedding StepEmbedding",
        "envs": "DarkKeyToDoor Darkroom DarkroomPermuted Env",
        "policy": "InContextPolicy",
        "reconstruction": "FieldDecoder",
        "task": "DistillationTask PolicyTask PretrainTask",
        "transformer": "Transformer",
    },
)
