"""Signals: files, mel front ends, resampling, spectral losses, metrics and an embedded speech-like corpus."""

from zoo.common.registry import public

__getattr__, __all__ = public(
    __name__,
    {
        "analysis.mel": "LogMel",
        "analysis.spectral": "MultiScaleMel",
        "augment.degrade": "Degrader",
        "corpora.synthetic": "EmbeddedCorpus",
    },
)
