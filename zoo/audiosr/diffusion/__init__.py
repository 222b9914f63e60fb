"""The diffusion process and its samplers."""
