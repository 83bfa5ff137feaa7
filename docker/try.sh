#!/usr/bin/env bash
# Builds the images, brings a deployment up, paints, kills a denoiser that paints, and takes everything down again; prints the
# figures. Needs a running engine and the compose plugin: docker/try.sh
set -euo pipefail
cd "$(dirname "$0")/.."

compose=(docker compose --file docker/compose.yaml --project-name fresco-try)
url=http://127.0.0.1:8080
READY_WITHIN_S=300

main() {
    if ! docker info >/dev/null 2>&1; then
        echo "no engine runs here: nothing was tried"
        return
    fi
    trap '"${compose[@]}" down --volumes --remove-orphans' EXIT
    "${compose[@]}" build
    docker image ls --format '{{.Repository}} {{.Size}}' | grep '^fresco/'
    "${compose[@]}" up --detach
    wait_until_ready
    paint 7 >/dev/null
    echo "a picture came after $SECONDS s"
    kill_one_that_paints
    trap - EXIT
    "${compose[@]}" down --volumes --remove-orphans
    left=$(docker ps --all --quiet --filter label=com.docker.compose.project=fresco-try)
    [ -z "$left" ] || { echo "left over: $left" >&2; return 1; }
    echo "all down after $SECONDS s"
}

wait_until_ready() {
    until curl --fail --silent --output /dev/null "$url/readyz" && [ "$(workers)" -ge 3 ]; do
        [ "$SECONDS" -lt "$READY_WITHIN_S" ] || { "${compose[@]}" logs --tail 20; return 1; }
        sleep 1
    done
}

workers() {
    curl --fail --silent "$url/v1/workers" | grep --only-matching '"state":"\(idle\|busy\)"' | wc --lines
}

# Eight pictures with this seed; fails unless all came.
paint() {
    local answer
    answer=$(curl --fail --silent --show-error "$url/v1/images/generations" -H 'content-type: application/json' \
        --data "{\"prompt\": \"a red fox\", \"size\": \"128x128\", \"n\": 8, \"seed\": $1, \"num_inference_steps\": 20}")
    [ "$(grep --only-matching '"b64_json"\|"url"' <<<"$answer" | wc --lines)" -ge 8 ] || return 1
}

kill_one_that_paints() {
    local began=$SECONDS asked
    paint 100 &
    asked=$!
    until curl --fail --silent "$url/v1/workers" | grep --quiet '"role":"denoiser","state":"busy"'; do sleep 0.1; done
    docker kill "$("${compose[@]}" ps --quiet denoiser | head -1)"
    wait "$asked"
    echo "a denoiser was killed in mid-job and all pictures came, $((SECONDS - began)) s after they were asked for"
}

main "$@"
