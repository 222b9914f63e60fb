#!/usr/bin/env bash
# Train on every device of one machine, or on the first N:
#   scripts/launch.sh RECIPE [N] [flags of `zoo fit` ...]
# Lightning starts one process a device by itself, so this is `zoo fit` with the multi-device fragment; torchrun is
# used when LAUNCHER=torchrun (the same processes under an elastic agent, one node).
set -euo pipefail

usage="usage: scripts/launch.sh RECIPE [N] [flags of zoo fit ...]"
recipe=${1:?$usage}
shift
devices=auto
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
    devices=$1
    shift
fi
fragment="$(dirname "${BASH_SOURCE[0]}")/../configs/trainer/ddp.yaml"
arguments=(fit --config "$recipe" --config "$fragment" "--trainer.devices=$devices" "$@")

if [[ ${LAUNCHER:-} == torchrun ]]; then
    processes=$devices
    [[ $devices == auto ]] && processes=gpu
    exec torchrun --standalone --nproc-per-node="$processes" -m zoo "${arguments[@]}"
fi
exec python -m zoo "${arguments[@]}"
