"""Latents of training pictures, computed once: encoding a batch costs as much as a third of a DiT step.

All singles and letters that are trained on, and as many pairs as fit a sensible file (their parts repeat anyway).
"""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL

from demo_model import scenes, training, vae

SIZE = 128
PAIRS = 12_000  # of 160,000
ENCODE_BATCH = 32


def _listed(kind: str) -> list[scenes.Scene]:
    if kind == "pair":
        generator = np.random.default_rng(5)
        return [scenes.random_scene(generator, kind, "train") for _ in range(PAIRS)]
    places = itertools.product(range(3), range(3))
    backgrounds_and_colours = itertools.product(scenes.BACKGROUNDS, scenes.COLOURS, places)
    listed = []
    for background, colour, (row, column) in backgrounds_and_colours:
        if kind == "letter":
            things = [scenes.Thing(colour, row, column, letter=letter) for letter in scenes.LETTERS]
        else:
            forms = itertools.product(scenes.SHAPES, scenes.SIZES)
            things = [scenes.Thing(colour, row, column, shape=shape, size=size) for shape, size in forms]
        listed += [scenes.Scene(background, (thing,)) for thing in things]
    return [scene for scene in listed if not scene.is_held_out()]


@dataclass(frozen=True)
class Latents:
    """Normalised as the pipeline does: (z - mean) / std per channel."""

    chosen: dict[str, list[scenes.Scene]]
    values: dict[str, np.ndarray]  # kind → (scenes, channels, h, w) float16
    mean: list[float]
    std: list[float]

    def draw(self, generator: np.random.Generator, kinds: tuple[str, ...], count: int) -> tuple[list, torch.Tensor]:
        picked = []
        for kind in generator.choice(kinds, size=count):
            picked.append((kind, generator.integers(len(self.chosen[kind]))))
        values = np.stack([self.values[kind][index] for kind, index in picked]).astype(np.float32)
        return [self.chosen[kind][index] for kind, index in picked], torch.from_numpy(values)

    def normalise(self, raw: np.ndarray) -> torch.Tensor:
        mean, std = (np.float32(numbers)[:, None, None] for numbers in (self.mean, self.std))
        return torch.from_numpy((raw - mean) / std)


@torch.no_grad()
def encode(model: AutoencoderKL, chosen: list[scenes.Scene], size: tuple[int, int] = (SIZE, SIZE)) -> np.ndarray:
    parts = []
    for start in range(0, len(chosen), ENCODE_BATCH):
        images = [scenes.draw(scene, *size) for scene in chosen[start : start + ENCODE_BATCH]]
        inputs = training.to_tensor(images).contiguous()
        with torch.autocast("cpu", torch.bfloat16):
            parts.append(model.encode(inputs).latent_dist.mode().float().numpy())
    return np.concatenate(parts)


def load(folder: Path) -> Latents:
    """Computes them on the first call. Delete `latents.*` after training the VAE anew."""
    chosen = {kind: _listed(kind) for kind in scenes.KINDS}
    statistics = folder / "latents.json"
    if not statistics.exists():
        model = vae.load(folder)
        raw = {kind: encode(model, listed) for kind, listed in chosen.items()}
        # The three kinds weigh alike, as they do in training.
        mean = np.mean([values.mean(axis=(0, 2, 3)) for values in raw.values()], axis=0)
        squares = [((values - mean[:, None, None]) ** 2).mean(axis=(0, 2, 3)) for values in raw.values()]
        std = np.sqrt(np.mean(squares, axis=0))
        for kind, values in raw.items():
            normalised = (values - mean[:, None, None]) / std[:, None, None]
            np.save(folder / f"latents.{kind}.npy", normalised.astype(np.float16))
        # Rounded as a float32 prints, and last: a file that is there is whole.
        rounded = {"mean": [float(f"{m:.7g}") for m in mean], "std": [float(f"{s:.7g}") for s in std]}
        statistics.write_text(json.dumps(rounded))
    numbers = json.loads(statistics.read_text())
    values = {kind: np.load(folder / f"latents.{kind}.npy", mmap_mode="r") for kind in scenes.KINDS}
    return Latents(chosen, values, numbers["mean"], numbers["std"])
