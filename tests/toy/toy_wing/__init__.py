"""Toy wing: learns the gain between two signals; shows what a system needs and that zoo/ needs no edit for it."""
