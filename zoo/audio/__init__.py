"""Signals: files, mel front ends, resampling, spectral losses, metrics and an embedded speech-like corpus."""
