#!/usr/bin/env bash
# Builds the images, brings a deployment of its own up, paints, kills a denoiser, the gateway and the broker in mid-job, asks
# Prometheus, stops all of it in mid-job, and takes everything down again; prints the figures. The pictures stay in
# target/docker-try.
# Needs a running engine with buildx and the compose plugin, and curl; base images: docker/base.sh makes them where no registry
# is reachable.
set -euo pipefail
cd "$(dirname "$0")/.."

project=fresco-try
# Beside a deployment on the usual ports.
export PORT=18080 PROMETHEUS_PORT=19090
url=http://127.0.0.1:$PORT
pictures=target/docker-try
prompt="a big red circle left of a small blue square, white background"

READY_WITHIN_S=120
# Gateway and CLI, on top of the base.
SMALL_MB_MAX=60

main() {
    if ! docker info >/dev/null 2>&1; then
        echo "no engine runs here: nothing was tried"
        return
    fi
    trap take_down EXIT
    run compose build --quiet
    show_sizes
    run compose --progress quiet up --detach --wait --wait-timeout "$READY_WITHIN_S"
    run until_ready
    show_containers
    rm -rf "$pictures"
    run paint undisturbed 8
    kill_in_mid_job denoiser
    kill_in_mid_job gateway
    kill_in_mid_job nats
    run until_scraped
    stop_in_mid_job
    trap - EXIT
    run take_down
    nothing_is_left
    echo "all of it: $SECONDS s"
}

compose() {
    docker compose --file docker/compose.yaml --project-name "$project" "$@"
}

# Says how long a step took, and whether it did.
run() {
    local began=$SECONDS
    "$@" || { echo "failed after $((SECONDS - began)) s: $*" >&2; return 1; }
    echo "$((SECONDS - began)) s: $*"
}

# until_true SECONDS COMMAND...
until_true() {
    local deadline=$((SECONDS + $1))
    until "${@:2}"; do
        [ "$SECONDS" -lt "$deadline" ] || { echo "not within $1 s: ${*:2}" >&2; return 1; }
        sleep 0.1
    done
}

show_sizes() {
    local base name size
    base=$(docker image inspect --format '{{.Size}}' debian:bookworm-slim)
    for name in gateway cli ar-batcher denoiser nats prometheus; do
        size=$((($(docker image inspect --format '{{.Size}}' "fresco/$name") - base) / 1000000))
        echo "fresco/$name: $size MB on top of the base of $((base / 1000000)) MB"
        case $name in gateway | cli) [ "$size" -lt "$SMALL_MB_MAX" ] ;; esac
    done
}

until_ready() {
    until_true "$READY_WITHIN_S" is_ready || { compose logs --tail 20; return 1; }
}

is_ready() {
    [ "$(workers ar-batcher)" -eq 1 ] && [ "$(workers denoiser)" -eq 2 ] &&
        curl --fail --silent --output /dev/null "$url/readyz"
}

# How many of this role take work.
workers() {
    { curl --fail --silent "$url/v1/workers" || true; } |
        { grep --only-matching "\"role\":\"$1\",\"state\":\"\(idle\|busy\)\"" || true; } | wc --lines
}

show_containers() {
    local of_container
    for of_container in $(compose ps --quiet); do
        docker inspect --format \
            '{{.Name}}: user {{.Config.User}}, read-only root {{.HostConfig.ReadonlyRootfs}}, without {{.HostConfig.CapDrop}}, {{if .State.Health}}{{.State.Health.Status}}{{else}}no health check{{end}}' \
            "$of_container"
    done
}

# paint JOB COUNT FLAG_OF_CURL...: so many pictures of the same seeds into a folder of the job's name. Where nobody answers it asks
# again under the same key, as a careful client does.
paint() {
    local folder=$pictures/$1 number=0 picture
    mkdir -p "$folder"
    curl --fail --silent --retry 120 --retry-delay 1 --retry-all-errors --output "$folder/answer.json" "${@:3}" \
        "$url/v1/images/generations" -H 'content-type: application/json' -H "idempotency-key: $1" --data \
        "{\"prompt\": \"$prompt\", \"size\": \"128x128\", \"n\": $2, \"seed\": 7, \"num_inference_steps\": 100, \"response_format\": \"b64_json\"}"
    while read -r picture; do
        base64 --decode <<<"$picture" >"$folder/$number.png"
        number=$((number + 1))
    done < <(grep --only-matching '"b64_json":"[^"]*"' "$folder/answer.json" | cut --delimiter '"' --fields 4)
    [ "$number" -eq "$2" ] || { echo "$number pictures of $2" >&2; return 1; }
}

# Kills a container of this service while a denoiser paints (of the denoisers the one that does), and compares what came.
kill_in_mid_job() {
    local began=$SECONDS job=without-$1 asked busy killed number lost
    paint "$job" 8 &
    asked=$!
    until_true 60 a_denoiser_paints
    busy=$(busy_denoiser)
    case $1 in denoiser) killed=$busy ;; *) killed=$(compose ps --quiet "$1") ;; esac
    kill -0 "$asked" || { echo "the job was over before anything was killed" >&2; return 1; }
    docker kill "$killed" >/dev/null
    # A killed denoiser's work is the others'; where there is only one, it has to come back.
    [ "$1" = denoiser ] || compose start "$1" 2>/dev/null
    wait "$asked"
    for number in {0..7}; do
        cmp "$pictures/undisturbed/$number.png" "$pictures/$job/$number.png"
    done
    lost=$(attempts_lost "$job")
    echo "$((SECONDS - began)) s: docker kill of $1 in mid-job: 8 pictures of 8, the same bytes, attempts that were lost: $lost"
    [ "$1" != denoiser ] || [ "$lost" -ge 1 ]
    [ "$1" != denoiser ] || compose start "$1" 2>/dev/null
    run until_ready
}

# Stops everything while a denoiser paints: the gateway answers what it has let in before it goes, and nobody asks it twice. Few
# pictures, so that they take less than the grace of the gateway.
stop_in_mid_job() {
    local began=$SECONDS asked number
    paint stopped 2 --retry 0 &
    asked=$!
    until_true 60 a_denoiser_paints
    kill -0 "$asked" || { echo "the job was over before anything was stopped" >&2; return 1; }
    compose stop 2>/dev/null
    wait "$asked"
    for number in 0 1; do
        cmp "$pictures/undisturbed/$number.png" "$pictures/stopped/$number.png"
    done
    echo "$((SECONDS - began)) s: docker compose stop in mid-job: 2 pictures of 2, the same bytes"
}

a_denoiser_paints() {
    [ -n "$(busy_denoiser)" ]
}

# The name of its host is the start of its container's id.
busy_denoiser() {
    { curl --fail --silent "$url/v1/workers" || true; } |
        sed -n 's/.*"role":"denoiser","state":"busy","reason":null,"host":"\([0-9a-f]*\)".*/\1/p'
}

attempts_lost() {
    local job
    job=$(sed 's/.*"created":[0-9]*,"id":"\([^"]*\)".*/\1/' "$pictures/$1/answer.json")
    curl --fail --silent "$url/v1/images/jobs/$job" | { grep --only-matching '"outcome":"lost"' || true; } | wc --lines
}

until_scraped() {
    until_true 60 all_scraped
}

all_scraped() {
    local targets
    targets=$(curl --fail --silent "http://127.0.0.1:$PROMETHEUS_PORT/api/v1/targets?state=active" |
        grep --only-matching '"health":"[a-z]*"' | sort | uniq --count | tr --squeeze-repeats ' ')
    [ "$targets" = ' 4 "health":"up"' ]
}

take_down() {
    compose down --volumes --remove-orphans --timeout 20 2>/dev/null
}

nothing_is_left() {
    local left of_project="label=com.docker.compose.project=$project"
    left=$(docker container ls --all --quiet --filter "$of_project" &&
        docker volume ls --quiet --filter "$of_project" && docker network ls --quiet --filter "$of_project")
    [ -z "$left" ] || { echo "left over: $left" >&2; return 1; }
    echo "no container, volume or network is left"
}

main
