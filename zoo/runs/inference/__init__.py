"""What a trained system computes: on arrays, for a form, and for many files."""
