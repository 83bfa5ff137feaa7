"""What the reference makes of the demo checkpoint: prior tokens and pictures of diffusers' pipeline.

    python -m demo_model.goldens CHECKPOINT ../data/demo/goldens

Per case `case.json` (the request and the ids) and `image.png`. The stages in between have goldens of their own, on the
tiny checkpoint: `make_goldens.py`.
"""

import argparse
import shutil
from dataclasses import asdict
from pathlib import Path

from make_goldens import Case, paint, write_json  # noqa: I001  first: it sets OpenMP's threads

import torch
from diffusers import GlmImagePipeline

from recorder import Recorder

# The pipeline's default number of steps, and fewer; the last one is not square.
CASES = (
    Case("default_steps", "a big red circle on the left of a blue square, on a white background", 128, 128, 50, 7),
    Case("single", "a small cyan star in the top right corner on a black background", 128, 128, 20, 1),
    Case("letter", 'the letter "R" in purple at the bottom left, beige background', 128, 128, 20, 2),
    Case("wide", "a medium green triangle on the right, gray background", 128, 192, 20, 3),
)


def make_case(pipeline: GlmImagePipeline, recorder: Recorder, case: Case, folder: Path) -> None:
    picture = paint(pipeline, recorder, case)
    ids = {name: recorder.tensors[f"ar.{name}"].flatten().tolist() for name in ("input_ids", "large_ids")}
    (folder / case.name).mkdir()
    write_json(folder / case.name / "case.json", asdict(case) | ids)
    picture.save(folder / case.name / "image.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path, help="where to write; an existing folder is replaced")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shutil.rmtree(arguments.folder, ignore_errors=True)
    arguments.folder.mkdir(parents=True)
    pipeline = GlmImagePipeline.from_pretrained(arguments.checkpoint, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    recorder = Recorder(pipeline)
    for case in CASES:
        make_case(pipeline, recorder, case, arguments.folder)


if __name__ == "__main__":
    main()
