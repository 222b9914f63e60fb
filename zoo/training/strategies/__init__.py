"""Ways to spread a training over processes that Lightning does not have."""
