"""Processes that the page starts: trainings, commands, the config parser and the loaded model."""
