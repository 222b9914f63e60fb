"""Forms of recipes: controls, values, and what edits of them change."""
