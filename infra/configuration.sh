#!/bin/sh
# Writes the tables of docs/configuration.md anew, from what the programs in target/debug say: run it as `make configuration`.
set -eu
cd "$(dirname "$0")/.."

page=docs/configuration.md
new=$(mktemp)
trap 'rm -f "$new"' EXIT
sed '/^<!-- below: make configuration -->$/q' "$page" >"$new"
for program in fresco-gateway fresco-ar-batcher fresco-denoiser fresco; do
    echo >>"$new"
    "target/debug/$program" --print-reference >>"$new"
done
cat "$new" >"$page"
