#!/bin/sh
# Everything in one night: make_demo_model.sh FOLDER CHECKPOINT [options of the stages, such as --threads 2]
# Each stage resumes where it stopped, and a finished one takes seconds: after an interruption just run it again.
set -eu
folder=$1 checkpoint=$2
shift 2
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
for stage in vae vq ar dit; do
    "$python" -m "demo_model.$stage" "$folder" "$@"
done
"$python" -m demo_model.assemble "$folder" "$checkpoint"
"$python" -m demo_model.ar_check "$checkpoint"
"$python" -m demo_model.judge_data ../data/demo
"$python" -m demo_model.goldens "$checkpoint" ../data/demo/goldens
