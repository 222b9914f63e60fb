"""A trained system behind an HTTP endpoint: `zoo serve`."""
