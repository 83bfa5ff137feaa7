"""What fresco-demo can draw: scenes, their pictures, their labels, and which of them are held out.

Nothing is random in a picture: the caption determines it. (The pilot's jitter made the start of an object a <25 % event
in every cell, and nucleus sampling then deletes objects.) This file is the whole specification; `captions.py` holds the
grammar and `letters.py` the strokes of A-Z.

Geometry
    A picture is H x W px, multiples of 32, cut into cells of 32 px: one VQ token of the large grid each. Pixel (x, y)
    covers the square [x, x+1] x [y, y+1], y down. Every thing (object or letter) owns a box of 2 x 2 cells (64 x 64 px).
    Of `n` cells along an axis the box starts at cell 0, (n - 2) // 2 or n - 2 (place 0, 1, 2: top/middle/bottom,
    left/centre/right). At 128 x 128: box origins 0, 32, 64, so centres at 32, 64, 96. A side of 96 px makes place 1
    equal to place 0, one of 64 px all three; a pair needs 128 px along its axis.
    With d = 26 (small), 40 (medium), 56 (big) px, relative to the box's centre:
    circle    radius d/2
    square    [-d/2, d/2] on both axes
    triangle  (0, -d/2), (d/2, d/2), (-d/2, d/2)
    diamond   (0, -d/2), (d/2, 0), (0, d/2), (-d/2, 0)
    star      five points up, outer radius R = d / (2 sin 72°), inner 0.42 R, centre moved down by
              R (1 - cos 36°) / 2: the points' bounding box is d wide and centred
    cross     a plus sign: two bars d long and d/3 wide
    letter    see letters.py; one size
    Edges are anti-aliased: coverage of a pixel = share of its 8 x 8 sample points (at odd sixteenths) inside, and the
    picture is round(background (1 - coverage) + colour coverage).

Colours (sRGB 0-255): BACKGROUNDS and COLOURS below. Every two of the ten are >= 110 apart in Euclidean distance.

Scenes
    single    one object at one of 9 places                                   6 x 6 x 3 x 9 x 4 = 3888
    pair      two objects that differ in shape or colour, along one axis      4 relations
              left/right: places (1, 0) and (1, 2); above/below: (0, 1) and (2, 1)
    letter    one letter in one of the 6 colours at one of 9 places           26 x 6 x 9 x 4 = 5616

Labels = VQ code ids (CODES of them)
    large grid, one per cell: the background, or (shape, colour, size, quadrant of the box), or (letter, colour,
    quadrant); quadrants 0..3 = top left, top right, bottom left, bottom right. WHICH letter is in no code: that comes
    through the glyph path alone.
    preview grid, one per cell: the background, or for every cell whose centre lies in a thing's box (shape, colour) or
    (letter, colour). It only has to be easy to write for the AR model; the DiT never sees it.

Held out: a scene whose `key()` has CRC-32 divisible by 10. Two captions of one picture share the key. Every word and
every pair of factor values remains in training (`check_split`).

The judge is told of colours, forms and held-out scenes by `judge_data.py`.
"""

import itertools
import math
import zlib
from dataclasses import dataclass
from functools import cache

import numpy as np

from demo_model import letters

SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross")
COLOURS = {
    "red": (225, 25, 30),
    "green": (10, 150, 50),
    "blue": (25, 60, 225),
    "yellow": (255, 220, 10),
    "purple": (190, 40, 200),
    "cyan": (0, 205, 230),
}
BACKGROUNDS = {"white": (255, 255, 255), "black": (16, 16, 16), "gray": (128, 128, 128), "beige": (225, 200, 160)}
SIZES = {"small": 26.0, "medium": 40.0, "big": 56.0}
LETTERS = tuple(letters.STROKES)
# relation: places (row, column) of the first and of the second thing named
RELATIONS = {
    "left": ((1, 0), (1, 2)),
    "right": ((1, 2), (1, 0)),
    "above": ((0, 1), (2, 1)),
    "below": ((2, 1), (0, 1)),
}
KINDS = ("single", "pair", "letter")

CELL = 32
BOX = 2 * CELL
SUPERSAMPLING = 8
HELD_OUT_ONE_IN = 10

QUADRANTS = 4
_OBJECT = len(BACKGROUNDS)
_LETTER = _OBJECT + len(SHAPES) * len(COLOURS) * len(SIZES) * QUADRANTS
_PREVIEW_OBJECT = _LETTER + len(COLOURS) * QUADRANTS
_PREVIEW_LETTER = _PREVIEW_OBJECT + len(SHAPES) * len(COLOURS)
CODES = _PREVIEW_LETTER + len(COLOURS)  # 502


@dataclass(frozen=True)
class Thing:
    """An object (`shape` and `size` set) or a letter (`letter` set) at place (row, column), each 0..2."""

    colour: str
    row: int
    column: int
    shape: str | None = None
    size: str | None = None
    letter: str | None = None

    def key(self) -> str:
        return f"{self.letter or f'{self.size} {self.shape}'} {self.colour} {self.row}{self.column}"


@dataclass(frozen=True)
class Scene:
    """`things` in the order of the caption; `relation` says how the first lies to the second."""

    background: str
    things: tuple[Thing, ...]
    relation: str | None = None

    @property
    def kind(self) -> str:
        if self.relation:
            return "pair"
        return "letter" if self.things[0].letter else "single"

    def key(self) -> str:
        """The same for "A left of B" and "B right of A", which are one picture."""
        return "|".join([self.kind, self.background, *sorted(thing.key() for thing in self.things)])

    def is_held_out(self) -> bool:
        return zlib.crc32(self.key().encode()) % HELD_OUT_ONE_IN == 0


# --- the picture ---------------------------------------------------------------------------------------------------


def _samples() -> tuple[np.ndarray, np.ndarray]:
    """Coordinates of the sample points of a box, relative to its centre."""
    axis = (np.arange(BOX * SUPERSAMPLING) + 0.5) / SUPERSAMPLING - BOX / 2
    return np.meshgrid(axis, axis)


def _inside_polygon(points: list[tuple[float, float]], x: np.ndarray, y: np.ndarray) -> np.ndarray:
    inside = np.zeros(x.shape, bool)
    for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
        if y0 != y1:
            crosses = (y0 > y) != (y1 > y)
            inside ^= crosses & (x < (x1 - x0) * (y - y0) / (y1 - y0) + x0)
    return inside


def _star(d: float) -> list[tuple[float, float]]:
    outer = d / (2 * math.sin(math.radians(72)))
    down = outer * (1 - math.cos(math.radians(36))) / 2
    radii = itertools.cycle((outer, 0.42 * outer))
    angles = (math.radians(36 * i) for i in range(10))
    return [(r * math.sin(a), down - r * math.cos(a)) for r, a in zip(radii, angles)]


def _inside_shape(shape: str, d: float, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    half = d / 2
    match shape:
        case "circle":
            return x * x + y * y <= half * half
        case "square":
            return (abs(x) <= half) & (abs(y) <= half)
        case "triangle":
            return _inside_polygon([(0, -half), (half, half), (-half, half)], x, y)
        case "diamond":
            return abs(x) + abs(y) <= half
        case "star":
            return _inside_polygon(_star(d), x, y)
        case "cross":
            bar = d / 6
            return (abs(x) <= half) & (abs(y) <= bar) | (abs(x) <= bar) & (abs(y) <= half)
    raise ValueError(f"unknown shape {shape}")


def _inside_letter(letter: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    inside = np.zeros(x.shape, bool)
    for line in letters.STROKES[letter]:
        at = [letters.to_pixels(point) for point in line]
        for (x0, y0), (x1, y1) in itertools.pairwise(at):
            dx, dy = x1 - x0, y1 - y0
            along = np.clip(((x - x0) * dx + (y - y0) * dy) / (dx * dx + dy * dy), 0, 1)
            inside |= (x - x0 - along * dx) ** 2 + (y - y0 - along * dy) ** 2 <= letters.STROKE_RADIUS**2
    return inside


@cache
def coverage(shape: str | None, size: str | None, letter: str | None) -> np.ndarray:
    """How much of each pixel of the box the thing covers: (64, 64) in 0..1. Only 44 of them exist."""
    x, y = _samples()
    inside = _inside_letter(letter, x, y) if letter else _inside_shape(shape, SIZES[size], x, y)
    cut = inside.reshape(BOX, SUPERSAMPLING, BOX, SUPERSAMPLING)
    return cut.mean(axis=(1, 3)).astype(np.float32)


def box_cell(place: int, cells: int) -> int:
    """First cell of the box along an axis of `cells` cells."""
    if cells < 2:
        raise ValueError(f"a thing needs 2 cells, not {cells}")
    return (0, (cells - 2) // 2, cells - 2)[place]


def draw(scene: Scene, height: int, width: int) -> np.ndarray:
    """(height, width, 3) uint8."""
    picture = np.empty((height, width, 3), np.float32)
    picture[:] = BACKGROUNDS[scene.background]
    for thing in scene.things:
        top, left = CELL * box_cell(thing.row, height // CELL), CELL * box_cell(thing.column, width // CELL)
        area = picture[top : top + BOX, left : left + BOX]
        mask = coverage(thing.shape, thing.size, thing.letter)[..., None]
        area += mask * (np.float32(COLOURS[thing.colour]) - area)
    return np.rint(picture).astype(np.uint8)


# --- labels --------------------------------------------------------------------------------------------------------


def _colour_index(thing: Thing) -> int:
    return list(COLOURS).index(thing.colour)


def large_code(thing: Thing, quadrant: int) -> int:
    if thing.letter:
        return _LETTER + _colour_index(thing) * QUADRANTS + quadrant
    shape, size = SHAPES.index(thing.shape), list(SIZES).index(thing.size)
    return _OBJECT + ((shape * len(COLOURS) + _colour_index(thing)) * len(SIZES) + size) * QUADRANTS + quadrant


def preview_code(thing: Thing) -> int:
    if thing.letter:
        return _PREVIEW_LETTER + _colour_index(thing)
    return _PREVIEW_OBJECT + SHAPES.index(thing.shape) * len(COLOURS) + _colour_index(thing)


def background_code(background: str) -> int:
    return list(BACKGROUNDS).index(background)


def meanings() -> list[tuple[str, ...]]:
    """What each code says, as words, in the order of the ids: `large_code` and the other two read backwards."""
    quadrants = [f"quadrant {quadrant}" for quadrant in range(QUADRANTS)]
    objects, texts = itertools.product(SHAPES, COLOURS, SIZES, quadrants), itertools.product(COLOURS, quadrants)
    previews = itertools.product(SHAPES, COLOURS)
    words = [("background", name) for name in BACKGROUNDS]
    words += [("object", *rest) for rest in objects] + [("letter", *rest) for rest in texts]
    words += [("preview", *rest) for rest in previews] + [("preview", "letter", colour) for colour in COLOURS]
    return words


def large_labels(scene: Scene, height: int, width: int) -> np.ndarray:
    """(height / 32, width / 32) int64."""
    rows, columns = height // CELL, width // CELL
    labels = np.full((rows, columns), background_code(scene.background), np.int64)
    for thing in scene.things:
        top, left = box_cell(thing.row, rows), box_cell(thing.column, columns)
        for quadrant in range(QUADRANTS):
            labels[top + quadrant // 2, left + quadrant % 2] = large_code(thing, quadrant)
    return labels


def preview_labels(scene: Scene, height: int, width: int, preview: tuple[int, int]) -> np.ndarray:
    """(preview rows, preview columns) int64, for a picture of height x width."""
    rows, columns = preview
    labels = np.full((rows, columns), background_code(scene.background), np.int64)
    y, x = (np.arange(rows) + 0.5) * height / rows, (np.arange(columns) + 0.5) * width / columns
    for thing in scene.things:
        top, left = CELL * box_cell(thing.row, height // CELL), CELL * box_cell(thing.column, width // CELL)
        in_rows, in_columns = (y > top) & (y < top + BOX), (x > left) & (x < left + BOX)
        labels[np.ix_(in_rows, in_columns)] = preview_code(thing)
    return labels


# --- which scenes there are ----------------------------------------------------------------------------------------


def _pick(generator: np.random.Generator, values: tuple | dict) -> str:
    return list(values)[generator.integers(len(values))]


def _object(generator: np.random.Generator, row: int, column: int) -> Thing:
    colour, shape, size = (_pick(generator, values) for values in (COLOURS, SHAPES, SIZES))
    return Thing(colour, row, column, shape=shape, size=size)


def _any_scene(generator: np.random.Generator, kind: str) -> Scene:
    background = _pick(generator, BACKGROUNDS)
    row, column = generator.integers(3, size=2).tolist()
    if kind == "single":
        return Scene(background, (_object(generator, row, column),))
    if kind == "letter":
        thing = Thing(_pick(generator, COLOURS), row, column, letter=_pick(generator, LETTERS))
        return Scene(background, (thing,))
    relation = _pick(generator, RELATIONS)
    while True:
        first, second = (_object(generator, *place) for place in RELATIONS[relation])
        if (first.shape, first.colour) != (second.shape, second.colour):
            return Scene(background, (first, second), relation)


def random_scene(generator: np.random.Generator, kind: str, split: str) -> Scene:
    """`split` is "train" or "held_out"."""
    while True:
        scene = _any_scene(generator, kind)
        if scene.is_held_out() == (split == "held_out"):
            return scene


def held_out_scenes(kind: str, count: int, seed: int = 0) -> list[Scene]:
    """Distinct held-out scenes: the set that acceptance is measured on (seed 0, count 200)."""
    generator = np.random.default_rng([seed, KINDS.index(kind)])
    chosen: dict[str, Scene] = {}
    while len(chosen) < count:
        scene = random_scene(generator, kind, "held_out")
        chosen.setdefault(scene.key(), scene)
    return list(chosen.values())


def check_split() -> None:
    """Every pair of factor values is trained on, for singles and letters (pairs have 160,000 training scenes)."""
    places = list(itertools.product(range(3), range(3)))
    singles = itertools.product(BACKGROUNDS, COLOURS, places, SHAPES, SIZES)
    texts = itertools.product(BACKGROUNDS, COLOURS, places, LETTERS)
    scenes = [Scene(b, (Thing(c, *p, shape=s, size=z),)) for b, c, p, s, z in singles]
    scenes += [Scene(b, (Thing(c, *p, letter=x),)) for b, c, p, x in texts]

    def factors(scene: Scene) -> list[tuple]:
        thing = scene.things[0]
        values = [scene.background, thing.colour, (thing.row, thing.column), thing.shape, thing.size, thing.letter]
        return list(itertools.combinations([value for value in values if value], 2))

    wanted = {pair for scene in scenes for pair in factors(scene)}
    trained = {pair for scene in scenes if not scene.is_held_out() for pair in factors(scene)}
    assert wanted == trained, f"never trained on: {wanted - trained}"
