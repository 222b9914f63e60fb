"""The four tabs of the page."""
