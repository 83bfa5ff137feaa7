"""A simple reader of pictures, to see progress without the Rust judge: colours and masks, no network.

It knows what was asked for only where the judge does too: which boxes a thing may lie in.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np

from demo_model import scenes

SIZE = 128
ORIGINS = [scenes.CELL * scenes.box_cell(place, SIZE // scenes.CELL) for place in range(3)]
# A pixel belongs to a thing when it is nearer to some object colour than to the background, and not by a hair.
MARGIN = 12.0


@dataclass(frozen=True)
class Seen:
    colour: str
    row: int
    column: int
    shape: str | None
    size: str | None
    letter: str | None
    overlap: float


@cache
def _templates(letters: bool) -> list[tuple[dict, np.ndarray]]:
    if letters:
        return [({"letter": x}, scenes.coverage(None, None, x) > 0.5) for x in scenes.LETTERS]
    forms = [(shape, size) for shape in scenes.SHAPES for size in scenes.SIZES]
    return [({"shape": shape, "size": size}, scenes.coverage(shape, size, None) > 0.5) for shape, size in forms]


def _distances(pixels: np.ndarray, colours: dict) -> np.ndarray:
    return np.stack([np.linalg.norm(pixels - np.float32(colour), axis=-1) for colour in colours.values()], axis=-1)


def read_background(picture: np.ndarray) -> str:
    """The colour that most pixels are nearest to."""
    nearest = _distances(picture.reshape(-1, 3).astype(np.float32), scenes.BACKGROUNDS | scenes.COLOURS).argmin(-1)
    votes = np.bincount(nearest, minlength=len(scenes.BACKGROUNDS))[: len(scenes.BACKGROUNDS)]
    return list(scenes.BACKGROUNDS)[votes.argmax()]


def thing_mask(picture: np.ndarray, background: str) -> np.ndarray:
    pixels = picture.astype(np.float32)
    from_background = np.linalg.norm(pixels - np.float32(scenes.BACKGROUNDS[background]), axis=-1)
    return from_background > _distances(pixels, scenes.COLOURS).min(-1) + MARGIN


def read_thing(picture: np.ndarray, mask: np.ndarray, letters: bool) -> Seen | None:
    """The thing that `mask` holds."""
    if mask.sum() < 20:
        return None
    rows, columns = np.nonzero(mask)
    # The middle of the extent, not the centre of mass: that of a triangle lies low.
    middle = [(axis.min() + axis.max() + 1) / 2 for axis in (rows, columns)]
    row, column = (int(np.argmin([abs(m - origin - scenes.BOX / 2) for origin in ORIGINS])) for m in middle)
    inside = mask[ORIGINS[row] : ORIGINS[row] + scenes.BOX, ORIGINS[column] : ORIGINS[column] + scenes.BOX]
    scores = [(inside & form).sum() / (inside | form).sum() for _, form in _templates(letters)]
    best = int(np.argmax(scores))
    colour = np.median(picture[mask].astype(np.float32), axis=0)
    name = list(scenes.COLOURS)[_distances(colour, scenes.COLOURS).argmin()]
    form = {"shape": None, "size": None, "letter": None} | _templates(letters)[best][0]
    return Seen(name, row, column, overlap=float(scores[best]), **form)


def check(scene: scenes.Scene, picture: np.ndarray) -> dict[str, float]:
    """What is right, as 0 or 1; things of a pair are looked for in their halves."""
    background = read_background(picture)
    mask = thing_mask(picture, background)
    result = {"background": float(background == scene.background)}
    rights = []
    for thing in scene.things:
        area = np.ones_like(mask)
        if scene.relation in ("left", "right"):
            area[:, SIZE // 2 :] = thing.column == 2
            area[:, : SIZE // 2] = thing.column == 0
        elif scene.relation:
            area[SIZE // 2 :] = thing.row == 2
            area[: SIZE // 2] = thing.row == 0
        seen = read_thing(picture, mask & area, letters=thing.letter is not None)
        names = ("letter",) if thing.letter else ("shape", "size")
        right = {name: float(seen is not None and getattr(seen, name) == getattr(thing, name)) for name in names}
        right["colour"] = float(seen is not None and seen.colour == thing.colour)
        right["place"] = float(seen is not None and (seen.row, seen.column) == (thing.row, thing.column))
        rights.append(right)
    for name in rights[0]:
        result[name] = float(np.mean([right[name] for right in rights]))
    needed = ("letter",) if scene.kind == "letter" else ("shape",)
    result["all"] = float(all(right[n] for right in rights for n in (*needed, "colour", "place")))
    return result


def shares(chosen: list[scenes.Scene], pictures: list[np.ndarray]) -> dict[str, float]:
    checks = [check(scene, picture) for scene, picture in zip(chosen, pictures, strict=True)]
    return {name: round(float(np.mean([one[name] for one in checks])), 3) for name in checks[0]}
