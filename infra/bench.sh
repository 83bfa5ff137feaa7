#!/bin/sh
# The measurements of docs/bench.md, in one run on one machine: results into a folder, tables to stdout, a plot beside.
# Needs the release binaries and .fresco/bin/nats-server on the PATH: run it as `make bench`.
#
#   OUT    folder for the results          target/bench
#   SCALE  of all times of the stages      0.05
#   ROUNDS requests of each client         10
#   PARTS  some of: mixes plan dispatch tracing    all
#   UPDATE=1 puts the tables into docs/bench.md and README.md, and results and plot into docs/bench
set -eu
cd "$(dirname "$0")/.."

out=${OUT:-target/bench}
scale=${SCALE:-0.05}
rounds=${ROUNDS:-10}
parts=${PARTS:-mixes plan dispatch tracing}
fresco=target/release/fresco
commit=$(git describe --always --dirty)
failed=

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
    "$fresco" bench report "$out" --plot "$out/throughput.svg" >"$out/tables.md"
    cat "$out/tables.md"
    if [ -n "$failed" ]; then
        echo "failed:$failed" >&2
        exit 1
    fi
    if [ "${UPDATE:-}" = 1 ]; then
        update
    fi
}

# What people read is what was measured: nobody types a figure.
update() {
    mkdir -p docs/bench
    rm -f docs/bench/*.json docs/bench/throughput.svg
    cp "$out"/*.json "$out/throughput.svg" docs/bench/
    {
        cat "$out/tables.md"
        printf '\n![Throughput over the number of sizes](bench/throughput.svg)\n'
    } >"$out/page.md"
    between tables "$out/page.md" docs/bench.md
    section "Continuous over batched" >"$out/short.md"
    between bench "$out/short.md" README.md
}

# The table under this title.
section() {
    awk -v title="### $1" '/^### / { inside = $0 == title; next } inside && /^\|/' "$out/tables.md"
}

# Puts a file between two lines of another, <!-- NAME --> and <!-- /NAME -->; fails where they are missing.
between() {
    awk -v name="$1" -v file="$2" '
        $0 == "<!-- /" name " -->" { inside = 0; ends++ }
        !inside { print }
        $0 == "<!-- " name " -->" {
            inside = 1
            starts++
            print ""
            while ((getline line <file) > 0) print line
            print ""
        }
        END { exit starts != 1 || ends != 1 }' "$3" >"$out/updated.md"
    cat "$out/updated.md" >"$3"
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

# Requests at random, at 60 % and 85 % of what 28 slots can do for rows of 1281 tokens (0.868 images/s; the rows of this
# mix are a little shorter, and its bound in the tables higher). Every run is compared with its plan; these are what the
# closed loops leave out. Each has a seed of its own: with one, the same arrivals would come faster, not others.
plan() {
    timed open-60 --seed 60 --rate 0.521 --ar-slots 28 --sizes "$sizes_8" --requests 600
    timed open-85 --seed 85 --rate 0.738 --ar-slots 28 --sizes "$sizes_8" --requests 900
}

# No stage takes time: what is left is ours.
dispatch() {
    for clients in 1 4 16 64; do
        measured "$(printf dispatch-%02d "$clients")" --times infra/times/zero.json --denoisers 8 --ar-slots 64 --sizes 64x64 \
            --steps 1 --concurrency "$clients" --requests $((2000 + 100 * clients))
    done
}

# The same where every job is traced and where none is, in turns: the machine is not the same from minute to minute.
tracing() {
    for turn in 1 2 3; do
        for clients in 1 16; do
            for traced in "" --traced; do
                measured "$(printf 'tracing-%02d-%s%s' "$clients" "$turn" "$traced")" --times infra/times/zero.json \
                    --denoisers 8 --ar-slots 64 --sizes 64x64 --steps 1 --concurrency "$clients" \
                    --requests $((1500 + 200 * clients)) $traced
            done
        done
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
    "$fresco" bench run --out "$out" --name "$name" --commit "$commit" "$@" || failed="$failed $name"
}

sizes() {
    eval "echo \$sizes_$1"
}

main
