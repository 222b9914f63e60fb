"""Corpora of recordings and their caches."""
