#!/bin/sh
# The measurements of docs/bench.md, in one run on one machine: results into a folder, tables to stdout, a plot beside.
# Needs the release binaries and .fresco/bin/nats-server on the PATH: run it as `make bench`.
#
#   OUT    folder for the results          target/bench
#   SCALE  of all times of the stages      0.05
#   ROUNDS requests of each client         15
#   PARTS  some of: mixes plan dispatch    all
set -eu
cd "$(dirname "$0")/.."

out=${OUT:-target/bench}
scale=${SCALE:-0.05}
rounds=${ROUNDS:-15}
parts=${PARTS:-mixes plan dispatch}
fresco=target/release/fresco

# Of nearly equal tokens: what differs is the number of sizes, not the work.
sizes_1=1024x1024
sizes_2=$sizes_1,1152x896
sizes_4=$sizes_2,896x1152,1216x832
sizes_8=$sizes_4,832x1216,1344x768,768x1344,1536x640

main() {
    rm -f "$out"/*.json
    for part in $parts; do
        "$part"
    done
    "$fresco" bench report "$out" --plot "$out/throughput.svg" | tee "$out/tables.md"
}

# 14 denoisers and the published stage times: how much the number of sizes costs.
mixes() {
    for sizes in 1 2 4 8; do
        for admission in batched continuous; do
            timed "mix-028-$sizes-$admission" --admission "$admission" --concurrency 28 --ar-slots 28 \
                --sizes "$(sizes "$sizes")" --requests "$((28 * rounds))"
        done
    done
    for sizes in 1 8; do
        timed "mix-112-$sizes-continuous" --concurrency 112 --ar-slots 56 --sizes "$(sizes "$sizes")" --requests "$((112 * rounds))"
    done
}

# Requests at random, at 60 % and 85 % of what 28 slots can do (0.868 images/s). Every run is compared with its plan;
# these are what the closed loops leave out.
plan() {
    timed open-60 --rate 0.521 --ar-slots 28 --sizes "$sizes_8" --requests 600
    timed open-85 --rate 0.738 --ar-slots 28 --sizes "$sizes_8" --requests 900
}

# No stage takes time: what is left is ours.
dispatch() {
    for clients in 1 4 16 64; do
        measured "$(printf dispatch-%02d "$clients")" --times infra/times/zero.json --denoisers 8 --ar-slots 64 --sizes 64x64 \
            --steps 1 --concurrency "$clients" --requests $((2000 + 100 * clients))
    done
}

timed() {
    name=$1
    shift
    measured "$name" --times infra/times/ascend.json --time-scale "$scale" "$@"
}

measured() {
    name=$1
    shift
    echo "== $name"
    "$fresco" bench run --out "$out" --name "$name" "$@"
}

sizes() {
    eval "echo \$sizes_$1"
}

main
