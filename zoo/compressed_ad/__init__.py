"""CompressedAD: a frozen transformer learns a new task in its context, old context compressed to latent tokens."""
