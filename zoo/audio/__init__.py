"""Signals: files, mel front ends, resampling, spectral losses, metrics and an embedded speech-like corpus."""

from zoo.common.registry import register

__getattr__, __dir__, __all__ = register(
    __name__,
    {
        "analysis.mel": "LogMel",
        "analysis.spectral": "MultiScaleMel",
        "augment.degrade": "Degrader",
        "corpora.synthetic": "EmbeddedCorpus",
    },
)
