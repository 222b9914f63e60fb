"""What every system uses while it trains and none owns."""
