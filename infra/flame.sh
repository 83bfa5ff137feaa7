#!/bin/sh
# A flame graph of both processors while the dispatch benchmark runs: where the time of a request goes when no stage takes
# any. By role, `idle` among them. Needs the release binaries, .fresco/bin/nats-server on the PATH, perf (Debian: linux-perf)
# and inferno (cargo install inferno).
#
#   CLIENTS  at once               64
#   OUT      the picture           target/bench/dispatch-flame-$CLIENTS.svg
set -eu
cd "$(dirname "$0")/.."

clients=${CLIENTS:-64}
out=${OUT:-target/bench/dispatch-flame-$clients.svg}
requests=$((4000 + 300 * clients))

# The fleet starts within some seconds; then there are more seconds of load than are recorded.
START_S=8
RECORD_S=5

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
target/release/fresco bench run --times infra/times/zero.json --denoisers 8 --ar-slots 64 --sizes 64x64 --steps 1 \
    --concurrency "$clients" --requests "$requests" --out "$work" --name flame >"$work/log" 2>&1 &
bench=$!
sleep "$START_S"
# By debug tables: ours have no frame pointers.
perf record --all-cpus --event cpu-clock --freq 299 --call-graph dwarf,8192 --output "$work/perf" -- \
    sleep "$RECORD_S" >/dev/null 2>&1
if ! kill -0 "$bench" 2>/dev/null; then
    echo "the load was over before it was recorded" >&2
    exit 1
fi
wait "$bench"
grep throughput "$work/log"
mkdir -p "$(dirname "$out")"
perf script --no-inline --input "$work/perf" 2>/dev/null |
    inferno-collapse-perf |
    sed -e 's/^swapper;.*\( [0-9]*\)$/idle\1/' -e 's/^tokio-rt-worker;/gateway and client;/' -e 's/^fresco-ar-batch;/ar-batcher;/' \
        -e 's/^fresco-denoiser;/denoisers;/' -e 's/^fresco;/gateway and client;/' |
    inferno-flamegraph --title "Dispatch, $clients clients, 2 cores" --countname samples --minwidth 0.3 >"$out"
echo "the flame graph is $out"
