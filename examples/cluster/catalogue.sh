#!/bin/bash
# Checks many models: what validate, lint and scan report of each, as one line of JSON a model.
#
#   catalogue.sh LIST REPORT [PROCESSES]
#
# LIST has a model a line: a path, hf://org/repo, https://..., s3://... A line of REPORT is
#
#   {"model": ..., "validate": ..., "lint": ..., "scan": ..., "exit": {"validate": 0, "lint": 0,
#   "scan": 0}}
#
# with the documents of docs/json.md, in the order of the list; a model that does not open has
# {"error": ...} in their place. Models whose line is in a report that was cut short are not looked
# at again. To share a list between machines, give each its lines (`split -n l/4 LIST`) and join the
# reports with `cat`.
set -euo pipefail

list=$1
report=$2
processes=${3:-$(nproc)}
parts=$report.d
export APR=${APR:-apr}

# One model: three reports, each on one line.
look() {
    local number=$1 model=$2 parts=$3 line command code document
    local out="$parts/$number.json"
    if [[ -s $out ]]; then return; fi
    line="{\"model\": $(quoted "$model")"
    local codes=""
    for command in validate lint scan; do
        code=0
        document=$("$APR" --json --threads 1 "$command" "$model" </dev/null 2>/dev/null) || code=$?
        # The documents have no line breaks but those of their layout: text has them as \n.
        document=$(printf '%s' "$document" | tr -d '\n')
        line+=", \"$command\": ${document:-null}"
        codes+="${codes:+, }\"$command\": $code"
    done
    printf '%s, "exit": {%s}}\n' "$line" "$codes" >"$out.new"
    mv "$out.new" "$out"
}

# A text as JSON.
quoted() {
    local text=${1//\\/\\\\}
    printf '"%s"' "${text//\"/\\\"}"
}
export -f look quoted

mkdir -p "$parts"
grep -v '^[[:space:]]*\(#\|$\)' "$list" | awk '{ printf "%08d%c%s%c", NR, 0, $0, 0 }' |
    PARTS=$parts xargs -0 -n 2 -P "$processes" bash -c 'look "$0" "$1" "$PARTS"'
find "$parts" -name '*.json' -print0 | sort -z | xargs -0 cat >"$report.new"
mv "$report.new" "$report"
rm -r "$parts"
