#!/usr/bin/env bash
# Train under SLURM, in as many pieces as the time limit and lost processes make of it:
#   sbatch [--nodes=2] [--gpus-per-node=4 --ntasks-per-node=4] scripts/slurm.sh RECIPE [flags of `zoo fit` ...]
#
# One task a GPU. Two minutes before the limit SLURM sends SIGUSR1; every rank finishes its step, the checkpoint is
# saved and zoo exits with 143. That code puts the job back in the queue, and `--ckpt_path auto` goes on with the
# newest run of the recipe (or starts one). So does the loss of a process (killed, out of memory, hung, its machine
# gone), unless that happened ZOO_RESTARTS (3) times in a row without a new checkpoint. Any other code ends the job:
# 0 finished, 1 failed, 2 a mistake in the command.
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
export MASTER_ADDR=${MASTER_ADDR:-$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)}
# A port by job number, so that two jobs on a node do not meet.
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))

runs=runs
before=
for flag in "$@"; do
    [[ $flag == --trainer.default_root_dir=* ]] && runs=${flag#*=}
    [[ $before == --trainer.default_root_dir ]] && runs=$flag
    before=$flag
done
lost=0 # times in a row that a process was lost before a new checkpoint
record=slurm-$SLURM_JOB_ID.lost
if [[ -f $record && -z $(find "$runs" -name 'step_*.ckpt' -newer "$record" -print -quit 2>/dev/null) ]]; then
    lost=$(<"$record")
fi
echo "$lost" >"$record"

# Once one task has ended the others have ZOO_WAIT seconds to end by themselves.
srun --kill-on-bad-exit=0 --wait="${ZOO_WAIT:-120}" python -m zoo fit --config "$recipe" --config trainer/ddp \
    "--trainer.num_nodes=$SLURM_JOB_NUM_NODES" "--trainer.devices=${SLURM_NTASKS_PER_NODE:-1}" --ckpt_path auto "$@"
code=$?

requeue() {
    echo "$1: back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
if [[ $code -eq 143 ]]; then
    requeue "stopped before the time limit, checkpoint saved"
elif [[ $code -eq 75 || $code -ge 128 ]]; then # zoo lost contact, or a signal ended a task
    echo "$((lost + 1))" >"$record.new"
    touch -r "$record" "$record.new"
    mv "$record.new" "$record"
    if [[ $lost -lt ${ZOO_RESTARTS:-3} ]]; then
        requeue "a process was lost (exit code $code)"
    fi
    echo "a process was lost $((lost + 1)) times in a row without a new checkpoint: given up" >&2
fi
rm -f "$record"
exit "$code"
