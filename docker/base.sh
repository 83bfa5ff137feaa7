#!/usr/bin/env bash
# Makes the base image where no registry is reachable: Debian's own packages by debootstrap, under the tag that the Dockerfile
# asks for. Needs root, debootstrap and a running engine: docker/base.sh [MIRROR]
set -euo pipefail

suite=bookworm
tag=debian:$suite-slim

if docker image inspect "$tag" >/dev/null 2>&1; then
    echo "$tag is there already"
    exit 0
fi
folder=$(mktemp -d)
root=$folder/root
trap 'rm -rf "$folder"' EXIT
debootstrap --variant=minbase --include=ca-certificates "$suite" "$root" ${1:+"$1"}
# What the official slim image leaves out too, but for the licences.
find "$root/usr/share/doc" -depth -type f ! -name copyright -delete
rm -rf "$root"/usr/share/{man,info,locale}/* "$root"/var/{cache/apt,lib/apt/lists}/*
tar --create --directory "$root" --numeric-owner . | docker import --change 'CMD ["bash"]' - "$tag"
docker image inspect --format '{{.RepoTags}} {{.Size}} bytes' "$tag"
