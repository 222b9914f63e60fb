"""Flow matching on sequences of features: audio."""
