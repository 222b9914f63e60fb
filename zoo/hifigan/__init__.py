"""HiFi-GAN: GAN vocoder from mel or SSL features to waveform (Kong et al., 2020)."""

from zoo.common.registry import public

__getattr__, __all__ = public(
    __name__,
    {
        "conditioners": "Conditioner ConformerConditioner LinearConditioner PrenetConditioner",
        "data": "VocoderData",
        "discriminators": "MultiPeriodDiscriminator MultiScaleDiscriminator",
        "generator": "Generator",
        "task": "HiFiGANTask",
        "vocoder": "Vocoder",
    },
)
