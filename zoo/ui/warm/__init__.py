"""Trained systems that stay loaded between two requests, each in a process of its own."""
