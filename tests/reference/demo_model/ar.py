"""Stage 3: the language model that writes the ids.

    python -m demo_model.ar FOLDER          # train
    python -m demo_model.ar_check CHECKPOINT   # positions against transformers

Most steps leave out all but the last row of the preview (five times cheaper); the last ones are whole sequences.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GlmImageConfig
from transformers.models.glm_image.modeling_glm_image import GlmImageTextModel

from demo_model import config, scenes, tokens, training

SIZE = (128, 128)
# One step in four, so that the model counts rows and columns instead of knowing 128 x 128 by heart.
OTHER_SIZES = ((128, 192), (192, 128), (160, 160), (192, 192), (128, 160), (160, 128))
OTHER_SHARE = 0.25
SHORT_SHARE = 0.6  # of the steps
BATCH_SHORT, BATCH_WHOLE = 64, 14
PART_WEIGHTS = {"preview": 1.0, "large": 2.0, "end": 0.1}
# A wrong preview id at inference must not lead the large grid astray.
INPUT_NOISE = 0.02
RECIPE = training.Recipe("ar", steps=3600, learning_rate=2e-3, seed=3)


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        values = GlmImageConfig.from_dict(config.vision_language_encoder(tokens.vocabulary())).text_config
        self.language_model = GlmImageTextModel(values)
        self.lm_head = nn.Linear(values.hidden_size, values.vision_vocab_size, bias=False)

    def hidden(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return self.language_model(
            input_ids=input_ids, position_ids=position_ids, use_cache=False
        ).last_hidden_state


def build() -> LanguageModel:
    torch.manual_seed(RECIPE.seed)
    return LanguageModel()


def with_noise(batch: tokens.Batch) -> torch.Tensor:
    noise = torch.randint_like(batch.input_ids, scenes.CODES)
    noisy = (torch.rand(batch.input_ids.shape) < INPUT_NOISE) & (batch.input_ids < scenes.CODES)
    return torch.where(noisy, noise, batch.input_ids)


def losses(model: LanguageModel, batch: tokens.Batch) -> dict[str, torch.Tensor]:
    # The plain attention kernel: short sequences, see dit.py.
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        hidden = model.hidden(with_noise(batch), batch.position_ids)
        asked = batch.parts >= 0
        logits = model.lm_head(hidden[asked]).float()
    each = functional.cross_entropy(logits, batch.targets[asked], reduction="none")
    parts, right = batch.parts[asked], (logits.argmax(-1) == batch.targets[asked]).float()
    named = {name: each[parts == index].mean() for index, name in enumerate(PART_WEIGHTS)}
    total = sum(weight * named[name] for name, weight in PART_WEIGHTS.items())
    return {"loss": total, **named, "large_right": right[parts == 1].mean()}


def make_batch(step: int, generator: np.random.Generator) -> tokens.Batch:
    short = step < SHORT_SHARE * RECIPE.steps
    other = generator.random() < OTHER_SHARE
    size = OTHER_SIZES[generator.integers(len(OTHER_SIZES))] if other else SIZE
    chosen = training.random_scenes(generator, BATCH_SHORT if short else BATCH_WHOLE)
    texts = training.captions_of(chosen, generator)
    return tokens.make_batch(chosen, texts, size, preview_rows=1 if short else tokens.preview_grid(*size)[0])


@torch.no_grad()
def accuracy(model: LanguageModel, kind: str, count: int) -> dict[str, float]:
    """Held-out captions, labels fed back in: right ids of the large grid, and pictures with all of them right."""
    chosen = scenes.held_out_scenes(kind, count)
    texts = training.captions_of(chosen, np.random.default_rng(1))
    rights = []
    for index in range(0, count, 16):
        part = slice(index, index + 16)
        batch = tokens.make_batch(chosen[part], texts[part], SIZE, preview_rows=tokens.preview_grid(*SIZE)[0])
        ids = model.lm_head(model.hidden(batch.input_ids, batch.position_ids)).argmax(-1)
        large = batch.parts == 1
        rights.append((ids == batch.targets)[large].view(len(chosen[part]), -1))
    right = torch.cat(rights).float()
    return {"large": right.mean().item(), "whole_picture": right.amin(dim=1).mean().item()}


def main() -> None:
    options = training.parse_options(__doc__)
    model = build()
    trainer = training.Trainer(RECIPE, model, options)

    def report(path: Path) -> None:
        """Ids have no picture of their own: numbers instead of a sheet."""
        lines = [f"{kind}: {accuracy(model, kind, 48)}" for kind in scenes.KINDS]
        path.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        print("\n".join(lines), flush=True)

    trainer.run(lambda step, generator: losses(model, make_batch(step, generator)), report)


if __name__ == "__main__":
    main()
