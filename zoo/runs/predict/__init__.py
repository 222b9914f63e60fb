"""Prediction over many files: what to compute, what is done, and who computes: processes or a Ray cluster."""
