#!/usr/bin/env bash
# Makes the base image where no registry is reachable: Debian's own packages by debootstrap, under the tag that the Dockerfile
# asks for. Needs root, debootstrap and a running engine: docker/base.sh [MIRROR]
set -euo pipefail

suite=bookworm
tag=debian:$suite-slim
mirror=${1:-http://deb.debian.org/debian}

if docker image inspect "$tag" >/dev/null 2>&1; then
    echo "$tag is there already"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
debootstrap --variant=minbase --include=ca-certificates "$suite" "$folder/root" "$mirror"
# What the official slim image leaves out too, but for the licences.
find "$folder/root/usr/share/doc" -depth -type f ! -name copyright -delete
rm -rf "$folder"/root/usr/share/{man,info,locale}/* "$folder"/root/var/{cache/apt,lib/apt/lists}/*
tar --create --directory "$folder/root" --numeric-owner . | docker import --change 'CMD ["bash"]' - "$tag"
docker image inspect --format '{{.RepoTags}} {{.Size}} bytes' "$tag"
