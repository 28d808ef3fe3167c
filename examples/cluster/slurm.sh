#!/bin/bash
# The parts of a plan as an array of Slurm, and a job that puts them together.
#
#   slurm.sh PLAN PARTS      submits both; PARTS is what `apr plan` printed
#
# A part that failed is done again by `scontrol requeue JOB_TASK`, or by submitting everything
# again: parts that are done are skipped. Where the array failed, the job that puts them together
# never runs.
#SBATCH --job-name=apr
#SBATCH --cpus-per-task=4
#SBATCH --mem=4G
#SBATCH --time=02:00:00
set -euo pipefail

plan=$1
apr=${APR:-apr}

case $2 in
part)
    exec "$apr" --threads "${SLURM_CPUS_PER_TASK:-1}" run-part "$plan" "$SLURM_ARRAY_TASK_ID"
    ;;
finish)
    exec "$apr" finish "$plan"
    ;;
*)
    array=$(sbatch --parsable --array="0-$(($2 - 1))" "$0" "$plan" part)
    sbatch --dependency="afterok:${array%%;*}" --cpus-per-task=1 "$0" "$plan" finish
    ;;
esac
