"""Work lists of up to 10^7 files in flat memory: plan, record of what was done, results in tar shards, Ray's actors."""
