"""The local web page of one user on one machine: train, watch, compare, predict."""
