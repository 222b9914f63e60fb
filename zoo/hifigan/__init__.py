"""HiFi-GAN: GAN vocoder from mel or SSL features to waveform (Kong et al., 2020)."""

from zoo.common.registry import public

__getattr__, __all__ = public(
    __name__,
    {
        "data": "VocoderData",
        "inference.vocoder": "Vocoder",
        "nets.conditioners": "Conditioner ConformerConditioner LinearConditioner PrenetConditioner",
        "nets.discriminators": "MultiPeriodDiscriminator MultiScaleDiscriminator",
        "nets.generator": "Generator",
        "task": "HiFiGANTask",
    },
)
