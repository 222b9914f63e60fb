"""Paths, times, couplings and solvers of the flow."""
