"""Processes that the page starts: trainings, whose turn it is and whose they are, and short commands."""
