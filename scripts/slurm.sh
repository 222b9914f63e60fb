#!/usr/bin/env bash
# Train under SLURM, in as many pieces as the time limit, lost processes and lost nodes make of it:
#   sbatch [--nodes=2] [--gpus-per-node=4 --ntasks-per-node=4] scripts/slurm.sh RECIPE [flags of `zoo fit` ...]
#
# One task a GPU. Two minutes before the limit SLURM sends SIGUSR1; every rank finishes its step, the checkpoint is
# saved and zoo exits with 143. That code puts the job back in the queue, and `--ckpt_path auto` goes on with the
# newest run of the recipe (or starts one). So does the loss of a process (killed, out of memory, hung, its machine
# gone), unless the job was started ZOO_RESTARTS (3) times more in a row without a new checkpoint. A failure of zoo
# itself ends the job with its code, whatever the ranks beside it report: 0 finished, 1 failed, 2 a mistake in the
# command. `scancel JOB` ends it for good, `scancel --signal=INT JOB` saves before (130), `scancel --signal=USR1 JOB` and
# `scontrol requeue JOB` save and come back.
#
# Variables: ZOO_RESTARTS; ZOO_WAIT (120), seconds that the other tasks have when one has ended; ZOO_CONTAINER, an image
# to run in: a file *.sif (apptainer) or the name of an image (pyxis); ZOO_MOUNTS, e.g. /data:/data,/scratch:/scratch,
# folders beside the working folder that it needs. In a job array %a in a flag is the task's number, and each task has a
# run folder of its own.
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
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))

name=$(basename "$recipe") # system and name as zoo names the folders of runs
name=${name%.*}
system=$(realpath -ms "$recipe")
system=$(dirname "$system")
system=$(basename "${system%/configs}")
if [[ -n ${SLURM_ARRAY_TASK_ID:-} ]]; then
    set -- "--trainer.default_root_dir=runs/array/$system/$name-%a" "$@"
    set -- "${@//%a/$SLURM_ARRAY_TASK_ID}"
fi
runs=(runs -path "*/$system/$name/*")
[[ $name == config ]] && runs=(runs) # a run's own config: below the name of its recipe
before=
for flag in "$@"; do
    [[ $flag =~ ^(--)?trainer\.default_root_dir= ]] && runs=("${flag#*=}")
    [[ $before == --trainer.default_root_dir ]] && runs=("$flag")
    before=$flag
done
record=slurm-$SLURM_JOB_ID.starts # in a row without a new checkpoint
gained() {
    [[ -n $(find "${runs[@]}" -name 'step_*.ckpt' -newer "$record" -print -quit 2>/dev/null) ]]
}
starts=1
[[ -f $record ]] && ! gained && starts=$(($(<"$record") + 1))
echo "$starts" >"$record"

image=() inside=() mounts=$PWD:$PWD${ZOO_MOUNTS:+,$ZOO_MOUNTS}
if [[ ${ZOO_CONTAINER:-} == *.sif ]]; then
    inside=(apptainer exec --nv --bind "$mounts" --pwd "$PWD" "$ZOO_CONTAINER")
elif [[ -n ${ZOO_CONTAINER:-} ]]; then
    image=("--container-image=$ZOO_CONTAINER" "--container-mounts=$mounts" "--container-workdir=$PWD")
fi
# srun ends with the highest code of its tasks: 1 and 2 become higher than what the ranks beside that one end with.
task='trap : USR1 TERM INT; "$@"; code=$?; ((code == 1 || code == 2)) && exit $((200 + code)); exit "$code"'
srun --kill-on-bad-exit=0 --wait="${ZOO_WAIT:-120}" "${image[@]}" bash -c "$task" zoo "${inside[@]}" \
    python -m zoo fit --config "$recipe" --config trainer/ddp "--trainer.num_nodes=$SLURM_JOB_NUM_NODES" \
    "--trainer.devices=${SLURM_NTASKS_PER_NODE:-1}" --ckpt_path auto "$@" &
step=$!

end() {
    rm -f "$record"
    exit "$1"
}
requeue() { # why, exit code when SLURM refuses
    trap '' TERM
    if [[ $starts -gt ${ZOO_RESTARTS:-3} ]] && ! gained; then
        echo "$1, and no new checkpoint in $starts starts: given up" >&2
        end "$2"
    fi
    echo "$1: back into the queue"
    scontrol requeue "$SLURM_JOB_ID" || end "$2"
    exit 0
}
stopped() { # by SLURM, which signals the tasks as well
    if [[ $(scontrol show job "$SLURM_JOB_ID") == *Reason=TimeLimit* ]]; then
        requeue "no rank had saved by the time limit" 143
    fi
    trap '' TERM
    wait "$step" # a pre-empted job comes back by SLURM itself, a cancelled one never
    end 143
}
trap stopped TERM
wait "$step"
code=$?

case $code in
143) requeue "stopped by a signal, checkpoint saved" "$code" ;;
201 | 202) end $((code - 200)) ;;
130) end "$code" ;;
75 | 12[89] | 1[3-9]? | 2??) requeue "a process was lost (exit code $code)" "$code" ;; # lost contact, or a signal
*) end "$code" ;;
esac
