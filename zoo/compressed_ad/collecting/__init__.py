"""Recording learning histories."""
