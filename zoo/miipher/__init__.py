"""Miipher-2: speech restoration by parallel adapters on a frozen SSL encoder, with a vocoder on its features."""

from zoo.common.registry import register

__getattr__, __dir__, __all__ = register(
    __name__,
    {
        "data.datamodule": "SpeechData VocoderSegments",
        "inference.features": "FeatureExtractor",
        "inference.restorer": "Restorer",
        "nets.adapters": "ParallelAdapters",
        "nets.backbone": "Backbone",
        "nets.cleaner": "Cleaner",
        "task": "AdapterTask",
        "task_backbone": "BackboneTask",
        "task_vocoder": "VocoderTask",
    },
)
