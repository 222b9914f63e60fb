"""Finding what to train with: searches over a recipe's keys, whose trials are runs."""
