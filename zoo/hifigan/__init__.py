"""HiFi-GAN: GAN vocoders from mel or SSL features to waveform (Kong et al., 2020), with BigVGAN and Vocos."""

from zoo.common.registry import register

__getattr__, __dir__, __all__ = register(
    __name__,
    {
        "data": "VocoderData",
        "inference": "Vocoder",
        "nets.base": "WaveformGenerator",
        "nets.conditioners": "Conditioner ConformerConditioner PrenetConditioner",
        "nets.discriminators": "MultiPeriodDiscriminator MultiScaleDiscriminator",
        "nets.bigvgan": "BigVGAN",
        "nets.encodec": "EncodecFeatures",
        "nets.generator": "Generator",
        "nets.magnitude_vocoders": "MagnitudeVocos",
        "nets.spectral_discriminators": "MultiBandDiscriminator MultiOctaveDiscriminator MultiResolutionDiscriminator",
        "nets.stochastic": "StochasticVocos",
        "nets.vocos": "Vocos",
        "task": "HiFiGANTask",
    },
)
