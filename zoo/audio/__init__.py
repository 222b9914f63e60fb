"""Signals: files, mel front ends, resampling, spectral losses, metrics and an embedded speech-like corpus."""

from zoo.common.registry import register_components

__getattr__, __all__ = register_components(
    __name__,
    {
        "analysis.mel": "LogMel",
        "analysis.spectral": "MultiScaleMel",
        "augment.degrade": "Degrader",
        "corpora.synthetic": "EmbeddedCorpus",
    },
)
