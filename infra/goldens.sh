#!/bin/sh
# Makes tests/data anew with the reference implementation; nobody needs that to build or test. Several GB of Python
# packages go to the cache of set-up. The exact versions and what to expect of the bytes: tests/reference/README.md.
set -eu
cd "$(dirname "$0")/../tests/reference"

venv="${FRESCO_CACHE:-$HOME/.cache/fresco}/reference-venv"
# A venv that pip did not finish is made again: the mark comes last.
if ! cmp -s requirements.txt "$venv/requirements.txt"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --requirement requirements.txt
    cp requirements.txt "$venv/requirements.txt"
fi
"$venv/bin/python" -B make_checkpoint.py ../data/tiny
"$venv/bin/python" -B make_goldens.py ../data/tiny ../data/goldens
git status --short ../data
