#!/usr/bin/env bash
# Makes the two images that the Dockerfile starts from where no image registry is reachable, under the official tags: Debian's
# own packages by debootstrap, and on them this machine's Rust, as Debian's packages and crates.io are still needed.
# Needs root, debootstrap, cargo and a running engine: docker/base.sh [DEBIAN_MIRROR]
set -euo pipefail
cd "$(dirname "$0")/.."

suite=bookworm
debian=debian:$suite-slim
# The tag that the Dockerfile names.
rust=$(sed -n 's/^ARG RUST=//p' docker/Dockerfile)
mirror=${1:-http://deb.debian.org/debian}
authorities=/etc/ssl/certs/ca-certificates.crt

main() {
    made "$debian" || make_debian
    made "$rust" || make_rust
    docker image inspect --format '{{join .RepoTags " "}} {{.Size}} bytes' "$debian" "$rust"
}

made() {
    docker image inspect "$1" >/dev/null 2>&1
}

make_debian() (
    folder=$(mktemp -d)
    root=$folder/root
    trap 'rm -rf "$folder"' EXIT
    debootstrap --variant=minbase "$suite" "$root" "$mirror"
    # debootstrap knows one suite; fixes are in two more.
    printf 'deb %s %s main\n' "$mirror" "$suite" "$mirror" "$suite-updates" \
        "${mirror%/debian}/debian-security" "$suite-security" >"$root/etc/apt/sources.list"
    # What the official slim image leaves out too, but for the licences.
    find "$root/usr/share/doc" -depth -type f ! -name copyright -delete
    rm -rf "$root"/usr/share/{man,info,locale}/* "$root"/var/{cache/apt,lib/apt/lists}/*
    tar --create --directory "$root" --numeric-owner . | docker import --change 'CMD ["bash"]' - "$debian"
)

make_rust() (
    sysroot=$(rustc --print sysroot)
    version=$(rustc --version | cut --delimiter ' ' --fields 2)
    [[ $rust == rust:${version%.*}-* ]] || {
        echo "the Dockerfile builds with $rust, this machine has Rust $version" >&2
        return 1
    }
    container=$(docker create "$debian" sh -c \
        'apt-get update && apt-get install --yes --no-install-recommends ca-certificates gcc libc6-dev && rm -rf /var/lib/apt/lists/*')
    trap 'docker rm --force "$container" >/dev/null' EXIT
    docker start --attach "$container"
    tar --create --directory "$sysroot" --owner 0 --group 0 bin lib | docker cp - "$container:/usr/local"
    # Behind a proxy with an authority of its own, a build has to know it too; nothing of this reaches an image that runs.
    [ ! -e "$authorities" ] || docker cp --follow-link "$authorities" "$container:$authorities"
    docker commit --change 'CMD ["bash"]' "$container" "$rust"
)

main
