"""What the Rust judge knows of the scenes, and the captions that the model is judged by.

    python -m demo_model.judge_data ../data/demo

`palette.json` has the colours and, in order, the forms; `forms.png` has a form's coverage of its box (grey, 0..255), one
below the other; `held_out.jsonl` has a held-out scene and one of its captions a line, `COUNT` of each kind.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from PIL import Image

from demo_model import captions, scenes

COUNT = 200


def forms() -> list[dict[str, str]]:
    """What a thing can look like, colour and place aside."""
    objects = [{"shape": shape, "size": size} for shape in scenes.SHAPES for size in scenes.SIZES]
    return objects + [{"letter": letter} for letter in scenes.LETTERS]


def palette() -> dict:
    return {"backgrounds": scenes.BACKGROUNDS, "colours": scenes.COLOURS, "forms": forms()}


def atlas() -> np.ndarray:
    """(44 * 64, 64) uint8."""
    tiles = [scenes.coverage(form.get("shape"), form.get("size"), form.get("letter")) for form in forms()]
    return np.rint(np.concatenate(tiles) * 255).astype(np.uint8)


def held_out() -> list[dict]:
    rows = []
    for kind in scenes.KINDS:
        generator = np.random.default_rng(1)
        for scene in scenes.held_out_scenes(kind, COUNT):
            things = [{key: value for key, value in vars(thing).items() if value is not None} for thing in scene.things]
            caption = captions.caption(scene, generator)
            rows.append({"caption": caption, "kind": kind, "background": scene.background, "things": things})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    scenes.check_split()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "palette.json").write_text(json.dumps(palette(), indent=1) + "\n")
    Image.fromarray(atlas()).save(folder / "forms.png", optimize=True)
    lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in held_out()]
    (folder / "held_out.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
