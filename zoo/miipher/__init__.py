"""Miipher-2: speech restoration by parallel adapters on a frozen SSL encoder, with a vocoder on its features."""
