"""The 26 letters as strokes: the glyph path is trained on these and the judge reads them.

A font file would be a dependency the judge cannot share; strokes are numbers both sides can hold. A letter is a list of
polylines on a grid 4 units wide and 6 high (x right, y down, origin at the letter's top left). Scaled by `UNIT` and
centred on its box, a letter is every point within `STROKE_RADIUS` px of one of its line segments.
"""

UNIT = (9.0, 8.0)  # px per unit in x and y: a letter is 36 x 48 px between stroke centres
GRID = (4.0, 6.0)
STROKE_RADIUS = 4.0  # strokes as wide as one VAE latent; thinner ones blur

_ROUND = [(3, 0), (4, 1.2), (4, 4.8), (3, 6), (1, 6), (0, 4.8), (0, 1.2), (1, 0), (3, 0)]
_OPEN = [(4, 1.2), (3, 0), (1, 0), (0, 1.2), (0, 4.8), (1, 6), (3, 6), (4, 4.8)]
_BOWL = [(0, 6), (0, 0), (2.8, 0), (4, 1), (4, 2.4), (2.8, 3.4), (0, 3.4)]

STROKES: dict[str, list[list[tuple[float, float]]]] = {
    "A": [[(0, 6), (2, 0), (4, 6)], [(0.7, 4), (3.3, 4)]],
    "B": [
        [(0, 6), (0, 0), (2.6, 0), (3.6, 0.8), (3.6, 2.1), (2.6, 2.9), (0, 2.9)],
        [(2.6, 2.9), (4, 3.8), (4, 5), (2.8, 6), (0, 6)],
    ],
    "C": [_OPEN],
    "D": [[(0, 0), (0, 6), (2.2, 6), (4, 4.2), (4, 1.8), (2.2, 0), (0, 0)]],
    "E": [[(4, 0), (0, 0), (0, 6), (4, 6)], [(0, 3), (3.2, 3)]],
    "F": [[(4, 0), (0, 0), (0, 6)], [(0, 3), (3.2, 3)]],
    "G": [[*_OPEN, (4, 3.2), (2.2, 3.2)]],
    "H": [[(0, 0), (0, 6)], [(4, 0), (4, 6)], [(0, 3), (4, 3)]],
    "I": [[(2, 0), (2, 6)], [(0.7, 0), (3.3, 0)], [(0.7, 6), (3.3, 6)]],
    "J": [[(4, 0), (4, 4.8), (3, 6), (1, 6), (0, 4.8)]],
    "K": [[(0, 0), (0, 6)], [(4, 0), (0, 3.4)], [(1.3, 2.4), (4, 6)]],
    "L": [[(0, 0), (0, 6), (4, 6)]],
    "M": [[(0, 6), (0, 0), (2, 3.2), (4, 0), (4, 6)]],
    "N": [[(0, 6), (0, 0), (4, 6), (4, 0)]],
    "O": [_ROUND],
    "P": [_BOWL],
    "Q": [_ROUND, [(2.2, 4), (4.2, 6.2)]],
    "R": [_BOWL, [(1.8, 3.4), (4, 6)]],
    "S": [
        [(4, 1), (3, 0), (1, 0), (0, 1), (0, 2), (1, 2.9), (3, 3.1), (4, 4), (4, 5), (3, 6), (1, 6), (0, 5)],
    ],
    "T": [[(0, 0), (4, 0)], [(2, 0), (2, 6)]],
    "U": [[(0, 0), (0, 4.8), (1, 6), (3, 6), (4, 4.8), (4, 0)]],
    "V": [[(0, 0), (2, 6), (4, 0)]],
    "W": [[(0, 0), (1, 6), (2, 2.2), (3, 6), (4, 0)]],
    "X": [[(0, 0), (4, 6)], [(4, 0), (0, 6)]],
    "Y": [[(0, 0), (2, 3), (4, 0)], [(2, 3), (2, 6)]],
    "Z": [[(0, 0), (4, 0), (0, 6), (4, 6)]],
}


def to_pixels(point: tuple[float, float]) -> tuple[float, float]:
    """Relative to the centre of the letter's box."""
    return ((point[0] - GRID[0] / 2) * UNIT[0], (point[1] - GRID[1] / 2) * UNIT[1])
