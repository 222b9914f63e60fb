"""Comparing results."""
