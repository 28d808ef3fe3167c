#!/bin/sh
# Judges a model before it is published, and writes a summary in Markdown.
#
#   judge.sh MODEL ORIGINAL CANARY [SUMMARY]      SUMMARY is a file that is added to
#
# MODEL is scanned and validated, its outputs are compared with ORIGINAL's, and its answers with
# those in CANARY (apr canary create). The exit status is 1 if one of them fails.
set -u

model=$1
original=$2
canary=$3
summary=${4:-/dev/stdout}
apr=${APR:-apr}
failed=0

judge() {
    "$apr" --quiet "$@" --markdown >>"$summary"
    status=$?
    [ "$status" -eq 0 ] && return
    failed=1
    # With exit code 5, the report says what failed. With another, there is no report.
    [ "$status" -eq 5 ] || printf '### apr %s: exit code %s\n' "$1" "$status" >>"$summary"
}

judge scan "$model"
judge validate "$model"
judge validate "$original" "$model" --quality
judge canary check "$model" --canary "$canary"
exit "$failed"
