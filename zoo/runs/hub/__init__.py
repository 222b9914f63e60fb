"""Models on a Hugging Face hub: pushed with a card, pulled and loaded by name, and originals known by theirs."""
