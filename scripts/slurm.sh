#!/usr/bin/env bash
# Train under SLURM, in as many pieces as the time limit makes of it:
#   sbatch [--nodes=2] [--gpus-per-node=4 --ntasks-per-node=4] scripts/slurm.sh RECIPE [flags of `zoo fit` ...]
#
# One task a GPU. Two minutes before the limit SLURM sends SIGUSR1; every rank finishes its step, the checkpoint is
# saved and zoo exits with 143. That code puts the job back in the queue, and `--ckpt_path auto` goes on with the
# newest run of the recipe (or starts one). Any other code ends the job: 0 finished, 1 failed.
#SBATCH --job-name=zoo
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=SIGUSR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -uo pipefail

recipe=${1:?usage: sbatch scripts/slurm.sh RECIPE [flags of zoo fit ...]}
shift
# SLURM runs a copy of this script, so paths count from the folder that sbatch was called in.
cd "${SLURM_SUBMIT_DIR:?start this script with sbatch}"
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# A port by job number, so that two jobs on a node do not meet.
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))

srun --kill-on-bad-exit=0 python -m zoo fit --config "$recipe" --config configs/trainer/ddp.yaml \
    "--trainer.num_nodes=$SLURM_JOB_NUM_NODES" "--trainer.devices=${SLURM_NTASKS_PER_NODE:-1}" --ckpt_path auto "$@"
code=$?
if [[ $code -eq 143 ]]; then
    echo "stopped before the time limit, checkpoint saved: back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
fi
exit "$code"
