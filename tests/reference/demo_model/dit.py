"""Stage 4: the DiT and, jointly, the glyph encoder (T5).

    python -m demo_model.dit FOLDER

Trained on label ids, with the pipeline's schedule and conditioning. The pipeline masks nothing, so all samples of a
forward pass have equally many glyph tokens: a step has one pass without quoted text (objects, and all samples whose
condition is dropped) and one of letters.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import GlmImageTransformer2DModel
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import T5Config, T5EncoderModel

from demo_model import config, latents, scenes, training, vae

SIZE = 128
BATCH_OBJECTS, BATCH_DROPPED, BATCH_LETTERS = 24, 4, 14
# One step in eight is of another size, with its latents encoded on the spot; a smaller batch makes up for both.
OTHER_SIZES = ((128, 192), (192, 128), (160, 160), (192, 192), (128, 160), (160, 128))
OTHER_ONE_IN = 8
OTHER_SHRINK = 2
# Three quarters of a picture are flat background, which is learned at once.
THING_WEIGHT = 2.0
EMPTY_TEXT = (1,)  # ByT5 of "": the end token
RECIPE = training.Recipe("dit", steps=3400, learning_rate=1.5e-3, seed=4, decay_share=0.3)


def sigma_of(timestep: torch.Tensor, latents_shape: torch.Size) -> torch.Tensor:
    """The pipeline's `calculate_shift` with the published scheduler's numbers."""
    patches = latents_shape[-2] * latents_shape[-1] // 4
    shift = 0.75 * (patches / 256) ** 0.5 + 0.25
    return shift / (shift + (1000 / timestep - 1))


class Painter(nn.Module):
    """Both modules, under the names of their folders."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = GlmImageTransformer2DModel.from_config(config.TRANSFORMER)
        self.text_encoder = T5EncoderModel(T5Config.from_dict(config.TEXT_ENCODER)).eval()  # without its dropout

    def glyphs(self, texts: list[tuple[int, ...]]) -> torch.Tensor:
        """Token ids of equally many tokens → (batch, tokens, width). Each different text is encoded once."""
        different = sorted(set(texts))
        encoded = self.text_encoder(torch.tensor(different)).last_hidden_state
        return encoded[torch.tensor([different.index(text) for text in texts])]

    def velocity(self, noisy: torch.Tensor, timestep: torch.Tensor, condition: "Condition") -> torch.Tensor:
        batch, height, width = len(noisy), 8 * noisy.shape[2], 8 * noisy.shape[3]
        size = torch.tensor([[height, width]], dtype=torch.float32).expand(batch, 2)
        # Sequences of 65 tokens: the plain kernel's backward is several times faster than the flash kernel's.
        with sdpa_kernel(SDPBackend.MATH):
            return self.transformer(
                hidden_states=noisy,
                encoder_hidden_states=self.glyphs(condition.texts),
                prior_token_id=condition.prior_ids,
                prior_token_drop=condition.dropped[:, None].expand_as(condition.prior_ids),
                timestep=timestep - 1,  # as the pipeline does
                target_size=size,
                crop_coords=torch.zeros_like(size),
                return_dict=False,
            )[0].float()


@dataclass(frozen=True)
class Condition:
    texts: list[tuple[int, ...]]
    prior_ids: torch.Tensor  # (batch, patches)
    dropped: torch.Tensor  # (batch,) bool

    @classmethod
    def of(cls, chosen: list[scenes.Scene], dropped: torch.Tensor, size: tuple[int, int] = (SIZE, SIZE)) -> "Condition":
        grids = [scenes.large_labels(scene, *size).repeat(2, axis=0).repeat(2, axis=1) for scene in chosen]
        texts = [
            EMPTY_TEXT if drop else glyph_ids(scene) for scene, drop in zip(chosen, dropped.tolist(), strict=True)
        ]
        return cls(texts, torch.from_numpy(np.stack([grid.ravel() for grid in grids])), dropped)


def glyph_ids(scene: scenes.Scene) -> tuple[int, ...]:
    """ByT5: bytes + 3, then the end token."""
    letter = scene.things[0].letter
    return (ord(letter) + 3, 1) if letter else EMPTY_TEXT


def composed_embedding() -> torch.Tensor:
    """Rows for the codes (codes, width): a code's row is the sum of one random vector per word of its meaning.

    Only a start. With 400 independent rows the model would learn red once for each shape, size and quadrant.
    """
    meanings = scenes.meanings()
    width = config.TRANSFORMER["num_attention_heads"] * config.TRANSFORMER["attention_head_dim"]
    vectors = {word: torch.randn(width) for words in meanings for word in words}
    return torch.stack([sum(vectors[word] for word in words) / len(words) ** 0.5 for words in meanings])


def build() -> Painter:
    torch.manual_seed(RECIPE.seed)
    model = Painter()
    with torch.no_grad():
        model.transformer.prior_token_embedding.weight[: scenes.CODES] = composed_embedding()
    # Blocks that start as the identity and an output that starts at zero train several times faster.
    for block in model.transformer.transformer_blocks:
        nn.init.zeros_(block.norm1.linear.weight)
        nn.init.zeros_(block.norm1.linear.bias)
    for layer in (model.transformer.norm_out.linear, model.transformer.proj_out):
        nn.init.zeros_(layer.weight)
        nn.init.zeros_(layer.bias)
    return model


def thing_weights(chosen: list[scenes.Scene], size: tuple[int, int]) -> torch.Tensor:
    """(batch, 1, h, w) with mean 1: more where a thing's box is."""
    labels = np.stack([scenes.large_labels(scene, *size) for scene in chosen])
    weights = torch.where(torch.from_numpy(labels) >= len(scenes.BACKGROUNDS), THING_WEIGHT, 1.0)
    weights = weights.repeat_interleave(4, dim=1).repeat_interleave(4, dim=2)[:, None]
    return weights / weights.mean()


@dataclass(frozen=True)
class Batch:
    """Pictures of one size with equally many glyph tokens."""

    chosen: list[scenes.Scene]
    clean: torch.Tensor  # (batch, channels, h, w)
    dropped: torch.Tensor  # (batch,) bool


def squared_error(model: Painter, batch: Batch) -> torch.Tensor:
    """(batch,) weighted squared error of the velocity at random timesteps."""
    clean, size = batch.clean, (8 * batch.clean.shape[2], 8 * batch.clean.shape[3])
    timestep = torch.randint(1, 1001, (len(clean),)).float()
    sigma = sigma_of(timestep, clean.shape)[:, None, None, None]
    noise = torch.randn_like(clean)
    condition = Condition.of(batch.chosen, batch.dropped, size)
    velocity = model.velocity((1 - sigma) * clean + sigma * noise, timestep, condition)
    error = (velocity - (noise - clean)).square() * thing_weights(batch.chosen, size)
    return error.mean(dim=(1, 2, 3))


class Data:
    """Cached latents at 128 x 128, fresh ones at other sizes."""

    def __init__(self, folder: Path) -> None:
        self.cache = latents.load(folder)
        self.vae = vae.load(folder)

    def batches(self, step: int, generator: np.random.Generator) -> tuple[Batch, Batch]:
        """Without quoted text, the last ones with their condition dropped; and letters."""
        other = step % OTHER_ONE_IN == OTHER_ONE_IN - 1
        size = OTHER_SIZES[generator.integers(len(OTHER_SIZES))] if other else (SIZE, SIZE)
        objects, dropped, letters = (
            n // OTHER_SHRINK if other else n for n in (BATCH_OBJECTS, BATCH_DROPPED, BATCH_LETTERS)
        )
        parts = [
            self._draw(generator, kinds, count, size)
            for kinds, count in ((("single", "pair"), objects), (scenes.KINDS, dropped), (("letter",), letters))
        ]
        plain = Batch(
            parts[0][0] + parts[1][0],
            torch.cat([parts[0][1], parts[1][1]]),
            torch.arange(objects + dropped) >= objects,
        )
        return plain, Batch(*parts[2], torch.zeros(letters, dtype=torch.bool))

    def _draw(self, generator: np.random.Generator, kinds: tuple[str, ...], count: int, size: tuple[int, int]) -> tuple:
        if size == (SIZE, SIZE):
            return self.cache.draw(generator, kinds, count)
        chosen = training.random_scenes(generator, count, dict.fromkeys(kinds, 1 / len(kinds)))
        return chosen, self.cache.normalise(latents.encode(self.vae, chosen, size))


def losses(model: Painter, batches: tuple[Batch, Batch]) -> dict[str, torch.Tensor]:
    # One autocast for both passes: it keeps its bf16 copies of the weights.
    with torch.autocast("cpu", torch.bfloat16):
        plain, quoted = (squared_error(model, batch) for batch in batches)
    dropped = batches[0].dropped
    return {
        "loss": torch.cat([plain, quoted]).mean(),
        "objects": plain[~dropped].mean(),
        "dropped": plain[dropped].mean(),
        "letters": quoted.mean(),
    }


@torch.no_grad()
def paint(model: Painter, chosen: list[scenes.Scene], steps: int, guidance: float = 1.5) -> torch.Tensor:
    """The pipeline's loop on label ids: normalised latents. All of `chosen` letters, or none."""
    shape = (1, config.VAE["latent_channels"], SIZE // 8, SIZE // 8)
    x = torch.cat([torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in range(len(chosen))])
    keep, drop = torch.zeros(len(chosen), dtype=torch.bool), torch.ones(len(chosen), dtype=torch.bool)
    condition, unconditional = Condition.of(chosen, keep), Condition.of(chosen, drop)
    timesteps = torch.linspace(1000, 1, steps + 1, dtype=torch.float64)[:-1].long().float()
    sigmas = [*sigma_of(timesteps, x.shape).tolist(), 0.0]
    for timestep, here, there in zip(timesteps, sigmas, sigmas[1:]):
        times = timestep.expand(len(chosen))
        with torch.autocast("cpu", torch.bfloat16):
            with_condition = model.velocity(x, times, condition)
            without = model.velocity(x, times, unconditional)
        x = x + (there - here) * (without + guidance * (with_condition - without))
    return x


@torch.no_grad()
def decode(decoder: torch.nn.Module, cache: latents.Latents, x: torch.Tensor) -> torch.Tensor:
    mean, std = (torch.tensor(values)[:, None, None] for values in (cache.mean, cache.std))
    return decoder.decode(x * std + mean).sample


def main() -> None:
    options = training.parse_options(__doc__)
    data = Data(options.folder)
    model = build()
    trainer = training.Trainer(RECIPE, model, options)

    def sheet(path: Path) -> None:
        painted = [paint(model, scenes.held_out_scenes(kind, 16), steps=12) for kind in scenes.KINDS]
        training.save_sheet(path, torch.cat([decode(data.vae, data.cache, x) for x in painted]), columns=16)

    trainer.run(lambda step, generator: losses(model, data.batches(step, generator)), sheet)


if __name__ == "__main__":
    main()
