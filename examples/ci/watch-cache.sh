#!/bin/sh
# Scans the Hugging Face cache, and prints what is new since the last time.
#
#   watch-cache.sh BASELINE      BASELINE is a file of accepted findings, which is made if missing
#
# Run it from a timer, for example by cron every ten minutes, or after each download:
#
#   */10 * * * *  sh watch-cache.sh "$HOME/.config/apr-cache.json" || mail -s "apr scan" me
#
# The exit status is 5 if a file of the cache has a finding that the baseline does not accept.
set -u

baseline=$1
apr=${APR:-apr}

# The first run accepts nothing.
[ -e "$baseline" ] || printf '{"files": []}\n' >"$baseline" || exit
report=$("$apr" --quiet scan --cache --baseline "$baseline" --markdown)
status=$?
[ "$status" -eq 0 ] || printf '%s\n' "$report"
exit "$status"
