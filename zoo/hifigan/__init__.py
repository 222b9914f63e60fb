"""HiFi-GAN: GAN vocoder from mel or SSL features to waveform (Kong et al., 2020)."""
