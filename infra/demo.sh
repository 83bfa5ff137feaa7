#!/bin/sh
# Starts a fleet on this machine, paints one prompt and stops it; with --stay, starts it and waits for Ctrl-C; with
# --sheet, paints the README's contact sheet.
# Needs the release binaries and .fresco/bin/nats-server on the PATH: run it as `make demo` or `make up`.
#
#   MODEL      a folder in the layout of the published checkpoint   assets/fresco-demo
#   DENOISERS  how many                                             2
#   PROMPT     what to paint in the demo                            see below
set -eu
cd "$(dirname "$0")/.."

model=${MODEL:-assets/fresco-demo}
denoisers=${DENOISERS:-2}
prompt=${PROMPT:-a big red circle on the left of a blue square, on a white background}
fresco=target/release/fresco
pictures=target/demo
sheet=docs/contact-sheet
up_pid=

# From a cold cache of file pages the first start reads libtorch (440 MB) once for each process.
READY_WITHIN_S=120

main() {
    work=$(mktemp -d)
    trap stop EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    if [ "${1:-}" = --stay ]; then
        # It prints its URL and a request to try. Its data folder stays: what was queued is done by the next one.
        start
        wait "$up_pid"
        return
    fi
    # Own data and a free port: a demo must not meet the queue or the address of a fleet that runs here.
    start --data "$work/data" --listen 127.0.0.1:0 --url-file "$work/url"
    until_ready
    if [ "${1:-}" = --sheet ]; then
        paint_sheet
        return
    fi
    paint "$prompt" -n 2 --out "$pictures"
    echo "the pictures are in $pictures"
}

# paint PROMPT OPTION...
paint() {
    "$fresco" generate "$@" --gateway "$(cat "$work/url")" --size 128x128 --seed 7
}

# One picture a line of prompts.txt, by its number.
paint_sheet() {
    number=0
    while read -r line; do
        number=$((number + 1))
        paint "$line" --out "$work/sheet" </dev/null
        mv "$work"/sheet/*.png "$(printf '%s/%02d.png' "$sheet" "$number")"
    done <"$sheet/prompts.txt"
}

start() {
    # In the background also with --stay: a shell that waits for a foreground child defers its traps, and a SIGTERM
    # sent to this script alone would leave the fleet running.
    "$fresco" up --model "$model" --denoisers "$denoisers" "$@" &
    up_pid=$!
}

until_ready() {
    deadline=$(($(date +%s) + READY_WITHIN_S))
    # The URL is written once everything is ready.
    while ! [ -s "$work/url" ]; do
        if ! kill -0 "$up_pid" 2>/dev/null; then
            echo "fresco up ended before it was ready" >&2
            exit 1
        fi
        if [ "$(date +%s)" -ge "$deadline" ]; then
            echo "fresco up was not ready within $READY_WITHIN_S s" >&2
            exit 1
        fi
        sleep 0.1
    done
}

stop() {
    status=$?
    trap - EXIT INT TERM
    if [ -n "$up_pid" ]; then
        kill -TERM "$up_pid" 2>/dev/null || true
        # It stops its children in order and ends after them: when this returns, nothing is left running.
        up_status=0
        wait "$up_pid" || up_status=$?
        if [ "$status" -eq 0 ] && [ "$up_status" -ne 0 ]; then
            echo "fresco up ended with status $up_status" >&2
            status=$up_status
        fi
    fi
    rm -rf "$work"
    exit "$status"
}

main "$@"
