"""The nets: plain modules of torch."""
