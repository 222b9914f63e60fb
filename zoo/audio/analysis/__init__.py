"""Spectra, mels, pitch and loudness of signals."""
