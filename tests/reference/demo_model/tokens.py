"""What the AR model reads and writes: prompt ids, visual ids, and their positions.

The positions follow transformers' `get_rope_index`; `ar_check.py` compares the two.
"""

import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

import make_checkpoint
import tiny_config
import tiny_tokenizer
from demo_model import captions, scenes

END_ID = tiny_config.IMAGE_END_ID
IGNORED = -100  # no loss here; what torch's cross entropy skips
# A mark with what can stand beside it, so that each piece of a caption is one token.
_MARKS = (' "', '"', '",', '".', " '", "'", "',", "'.", " “", "”", "”,", "”.", ",", ".", " ")


def _byte_level(text: str) -> str:
    [(spelling, _)] = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return spelling


def ar_words() -> list[str]:
    words = captions.words()
    spelled = [f" {word}" for word in words] + words + [word.capitalize() for word in words] + list(_MARKS)
    return list(dict.fromkeys(_byte_level(word) for word in spelled))


def save_processor(folder: Path) -> dict[str, int]:
    """The published files of `processor/`; returns the vocabulary."""
    tokenizer = tiny_tokenizer.ar_tokenizer(ar_words())
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab = tokenizer.get_vocab()
    make_checkpoint.write_json(folder / "tokenizer_config.json", tiny_tokenizer.ar_tokenizer_config(vocab))
    make_checkpoint.write_json(folder / "preprocessor_config.json", tiny_config.PREPROCESSOR)
    (folder / "chat_template.jinja").write_text(tiny_config.CHAT_TEMPLATE, encoding="utf-8")
    return vocab


@cache
def _tokenizer() -> tuple:
    """transformers' tokenizer of the files above: only loading them adds the tokens that the config names."""
    with tempfile.TemporaryDirectory() as folder:
        vocab = save_processor(Path(folder))
        return AutoTokenizer.from_pretrained(folder), vocab


def vocabulary() -> dict[str, int]:
    return _tokenizer()[1]


def large_grid(height: int, width: int) -> tuple[int, int]:
    return height // scenes.CELL, width // scenes.CELL


def preview_grid(height: int, width: int) -> tuple[int, int]:
    """About 256 cells whatever the size, truncated as the pipeline does it."""
    rows, columns = large_grid(height, width)
    return int((rows / columns) ** 0.5 * 16), int((columns / rows) ** 0.5 * 16)


def prompt_ids(texts: list[str], height: int, width: int) -> list[list[int]]:
    (rows, columns), (preview_rows, preview_columns) = large_grid(height, width), preview_grid(height, width)
    grids = f"<sop>{rows} {columns}<eop><sop>{preview_rows} {preview_columns}<eop>"
    start = tiny_config.dit_token(tiny_config.IMAGE_START_ID)
    return _tokenizer()[0]([text + grids + start for text in texts], add_special_tokens=False).input_ids


def visual_ids(scene: scenes.Scene, height: int, width: int) -> np.ndarray:
    """Preview, large grid, end."""
    preview = scenes.preview_labels(scene, height, width, preview_grid(height, width))
    return np.concatenate([preview.ravel(), scenes.large_labels(scene, height, width).ravel(), [END_ID]])


def visual_positions(start: int, height: int, width: int) -> np.ndarray:
    """(3, tokens) for t, h, w, when the prompt has `start` tokens."""
    parts = []
    for rows, columns in (preview_grid(height, width), large_grid(height, width)):
        row, column = np.divmod(np.arange(rows * columns), columns)
        parts.append(np.stack([np.full_like(row, start), start + row, start + column]))
        start += max(rows, columns)
    return np.concatenate([*parts, np.full((3, 1), start)], axis=1)


@dataclass(frozen=True)
class Batch:
    """Prompts of different lengths need no mask: padding comes last, where causal attention never looks."""

    input_ids: torch.Tensor  # (batch, tokens)
    position_ids: torch.Tensor  # (3, batch, tokens)
    targets: torch.Tensor  # (batch, tokens), IGNORED where nothing is asked
    parts: torch.Tensor  # (batch, tokens): 0 preview, 1 large grid, 2 end; -1 elsewhere


def make_batch(chosen: list[scenes.Scene], texts: list[str], size: tuple[int, int], preview_rows: int) -> Batch:
    """Only the last `preview_rows` rows of the preview are in the sequence; those kept have their true positions.

    The preview is nine tenths of a sequence and steers nothing, so most of training leaves most of it out.
    """
    height, width = size
    rows, columns = preview_grid(height, width)
    skipped = (rows - min(preview_rows, rows)) * columns
    kept = rows * columns - skipped
    prompts = prompt_ids(texts, height, width)
    visual = np.stack([visual_ids(scene, height, width)[skipped:] for scene in chosen])
    part = np.repeat([0, 1, 2], [kept, visual.shape[1] - kept - 1, 1])
    shape = (len(chosen), max(map(len, prompts)) + visual.shape[1] - 1)
    input_ids, targets, parts = np.zeros(shape, np.int64), np.full(shape, IGNORED), np.full(shape, -1)
    positions = np.zeros((3, *shape), np.int64)
    for index, prompt in enumerate(prompts):
        length = len(prompt)
        first, end = length - 1, length - 1 + visual.shape[1]
        input_ids[index, :end] = [*prompt, *visual[index, :-1]]
        positions[:, index, :length] = np.arange(length)
        positions[:, index, length:end] = visual_positions(length, height, width)[:, skipped:-1]
        targets[index, first:end], parts[index, first:end] = visual[index], part
        if skipped:  # the prompt's last token would have to guess a row it does not precede
            targets[index, first], parts[index, first] = IGNORED, -1
    return Batch(*(torch.from_numpy(array) for array in (input_ids, positions, targets, parts)))
