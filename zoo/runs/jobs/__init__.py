"""Work lists of up to 10^7 files in flat memory: their plan, the record of what was done, results in tar shards, and a Ray cluster."""
