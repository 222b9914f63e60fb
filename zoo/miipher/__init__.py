"""Miipher-2: speech restoration by parallel adapters on a frozen SSL encoder, with a vocoder on its features."""

from zoo.common.registry import public

__getattr__, __all__ = public(
    __name__,
    {
        "adapters": "AdapterStyle LoraAdapters OpenMiipherAdapters ParallelAdapters",
        "backbone": "Backbone",
        "cleaner": "Cleaner",
        "data": "SpeechData VocoderSegments",
        "restore": "FeatureExtractor Restorer",
        "task": "AdapterTask BackboneTask VocoderTask",
    },
)
