#!/usr/bin/env bash
# Train on every GPU of one machine, or with N processes, and start again from the newest checkpoint after a failure:
#   scripts/launch.sh RECIPE [N] [flags of `zoo fit` ...]
# torchrun restarts all processes at most ZOO_RESTARTS (3) times. Several machines: scripts/slurm.sh, docs/cluster.md.
set -euo pipefail
recipe=${1:?usage: scripts/launch.sh RECIPE [N] [flags of zoo fit ...]}
shift
processes=gpu devices=auto
[[ ${1:-} =~ ^[0-9]+$ ]] && processes=$1 devices=$1 && shift
# A store of its own for each start: in the shared one gloo finds addresses of the former start's processes.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec python -m torch.distributed.run --standalone --nproc-per-node="$processes" --max-restarts="${ZOO_RESTARTS:-3}" -m zoo fit \
    --config "$recipe" --config trainer/ddp "--trainer.devices=$devices" --ckpt_path auto "$@"
