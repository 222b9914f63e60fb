"""AudioSR: latent-diffusion audio super-resolution with global context."""
