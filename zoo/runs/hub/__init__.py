"""Models on a Hugging Face hub: pushed with a card, and loaded by name."""
