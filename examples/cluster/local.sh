#!/bin/sh
# All parts of a plan on this machine, some at a time, and then the finish.
#
#   local.sh PLAN PARTS [PROCESSES]      PARTS is what `apr plan` printed
#
# Each process gets its share of the cores.
set -eu

plan=$1
parts=$2
processes=${3:-$(nproc)}
apr=${APR:-apr}
threads=$((($(nproc) + processes - 1) / processes))

if command -v parallel >/dev/null; then
    seq 0 $((parts - 1)) | parallel --jobs "$processes" --halt now,fail=1 \
        "$apr" --quiet --threads "$threads" run-part "$plan" '{}'
else
    seq 0 $((parts - 1)) | xargs -P "$processes" -I '{}' "$apr" --quiet --threads "$threads" run-part "$plan" '{}'
fi
"$apr" finish "$plan"
