#!/usr/bin/env bash
# Train on every device of one machine, or on the first N:
#   scripts/launch.sh RECIPE [N] [flags of `zoo fit` ...]
# or of several; the same command on each, with its own rank (one file system for all: the runs lie on it):
#   scripts/launch.sh RECIPE [N] --nodes 2 --node-rank 0 --master HOST[:PORT] [flags of `zoo fit` ...]
#
# A lost process (killed, out of memory, hung, its host gone) ends all of them, and they start again from the newest
# checkpoint, at most ZOO_RESTARTS (3) times in a row without a new one. Processes that hang are killed ZOO_WAIT (120)
# seconds after the others have ended. LAUNCHER=torchrun uses torchrun on one machine, too.
set -euo pipefail
exec python -m zoo.training.launcher "$@"
