"""The grammar: a scene in words. Several phrasings each, but every caption names exactly one picture.

Defaults of what is left out: size medium, place the centre, background white.

    single   NP PLACE BACKGROUND           a big red circle in the top left corner on a white background
    pair     NP RELATION NP BACKGROUND     a big red circle on the left of a blue square, on a white background
    letter   LETTER PLACE BACKGROUND       the letter "A" in red at the bottom, gray background

One caption in seven starts with its background; some start with "a picture of" or a capital, or end with a stop.
"""

import re

import numpy as np

from demo_model.scenes import BACKGROUNDS, COLOURS, LETTERS, SHAPES, Scene, Thing

SIZE_WORDS = {"small": ("small ", "little "), "medium": ("", "medium "), "big": ("big ", "large ")}
_ROWS = (("top", "upper"), None, ("bottom", "lower"))
_COLUMNS = ("left", None, "right")
RELATION_PHRASES = {
    "left": ("on the left of", "to the left of", "left of"),
    "right": ("on the right of", "to the right of", "right of"),
    "above": ("above", "over"),
    "below": ("below", "under"),
}
CENTRE_PHRASES = (" in the centre", " in the center", " in the middle", "")
BACKGROUND_PHRASES = (" on a {} background", ", on a {} background", ", {} background", " with a {} background")
LEADING_BACKGROUND = "on a {} background, "
LETTER_PHRASES = ("a {colour} letter {quoted}", "the letter {quoted} in {colour}", "a {colour} {quoted}")
# Straight double quotes are what people type; the pipeline knows all of these.
QUOTES = ('"{}"', '"{}"', '"{}"', "'{}'", "“{}”")
PICTURE_OF = "a picture of "


def place_phrases(row: int, column: int) -> tuple[str, ...]:
    vertical, side = _ROWS[row], _COLUMNS[column]
    if vertical and side:
        edge, synonym = vertical
        return (f" at the {edge} {side}", f" in the {edge} {side} corner", f" in the {synonym} {side} corner")
    if vertical:
        return (f" at the {vertical[0]}", f" at the {vertical[0]} in the middle")
    if side:
        return (f" on the {side}", f" at the {side}", f" on the {side} side")
    return CENTRE_PHRASES


def _choose(generator: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[generator.integers(len(options))]


def _noun_phrase(thing: Thing, generator: np.random.Generator) -> str:
    if thing.letter:
        quoted = _choose(generator, QUOTES).format(thing.letter)
        return _choose(generator, LETTER_PHRASES).format(colour=thing.colour, quoted=quoted)
    return f"a {_choose(generator, SIZE_WORDS[thing.size])}{thing.colour} {thing.shape}"


def _subject(scene: Scene, generator: np.random.Generator) -> str:
    first = scene.things[0]
    if scene.relation:
        relation = _choose(generator, RELATION_PHRASES[scene.relation])
        second = _noun_phrase(scene.things[1], generator)
        return f"{_noun_phrase(first, generator)} {relation} {second}"
    return _noun_phrase(first, generator) + _choose(generator, place_phrases(first.row, first.column))


def caption(scene: Scene, generator: np.random.Generator) -> str:
    subject = _subject(scene, generator)
    if generator.random() < 0.15:
        subject = PICTURE_OF + subject
    if scene.background == "white" and generator.random() < 0.1:
        text = subject
    elif generator.random() < 1 / 7:
        text = LEADING_BACKGROUND.format(scene.background) + subject
    else:
        text = subject + _choose(generator, BACKGROUND_PHRASES).format(scene.background)
    if generator.random() < 0.15:
        text = text[0].upper() + text[1:]
    return text + ("." if generator.random() < 0.1 else "")


def words() -> list[str]:
    """Every word the grammar can write, for the tokenizer of the AR model."""
    places = [phrase for row in range(3) for column in range(3) for phrase in place_phrases(row, column)]
    relations = [phrase for phrases in RELATION_PHRASES.values() for phrase in phrases]
    sizes = [word for options in SIZE_WORDS.values() for word in options]
    text = " ".join(
        [*places, *relations, *sizes, *LETTER_PHRASES, *BACKGROUND_PHRASES, PICTURE_OF, *COLOURS, *BACKGROUNDS, *SHAPES]
    )
    return sorted(set(re.findall("[a-z]+", text)) - {"quoted", "colour"} | set(LETTERS))
