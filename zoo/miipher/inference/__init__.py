"""From trained nets to results."""
