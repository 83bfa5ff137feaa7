"""Stage 2: the picture tokenizer (ViT + codebook), which edits run and which defines what the ids mean.

    python -m demo_model.vq FOLDER

Every id has a meaning from the start (scenes.py, Labels): the codebook row of id k is trained as the prototype of class
k, so nearest row = likeliest class. A tokenizer trained to reconstruct pixels learns colours only, and the DiT, which
sees nothing but ids, could not know the shapes. The AR model and the DiT are trained on the labels themselves; this
stage is good when its ids equal them.
"""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GlmImageConfig
from transformers.models.glm_image.modeling_glm_image import GlmImageVisionModel, GlmImageVQVAE

from demo_model import config, scenes, tokens, training

SIZE = 128
PATCH = 16
BATCH_LARGE, BATCH_PREVIEW = 48, 8
# Sharpness of the softmax over cosines: they lie in -1..1, which alone could never say "certain".
COSINE_SCALE = 24.0
RECIPE = training.Recipe("vq", steps=1500, learning_rate=1.5e-3, seed=2)


class Tokenizer(nn.Module):
    """The two published modules, under the names they have in the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        values = GlmImageConfig.from_dict(config.vision_language_encoder(tokens.vocabulary()))
        self.visual = GlmImageVisionModel(values.vision_config)
        self.vqmodel = GlmImageVQVAE(values.vq_config)
        # A convolution with stride = kernel size is a matrix product, whose backward pass is ten times faster here.
        patch = self.visual.patch_embed
        patch.forward = lambda x: functional.linear(x, patch.proj.weight.flatten(1), patch.proj.bias)

    def cosines(self, images: torch.Tensor) -> torch.Tensor:
        """(batch, 3, height, width) at the ViT's size → (batch, patches, codes)."""
        batch, _, height, width = images.shape
        rows, columns = height // PATCH, width // PATCH
        patches = images.reshape(batch, 3, rows, PATCH, columns, PATCH).permute(0, 2, 4, 1, 3, 5)
        patches = patches.flatten(3).flatten(0, 2)  # (all patches, 768), channel-major as the processor cuts them
        grid = torch.tensor([[1, rows, columns]]).expand(batch, 3)
        hidden = self.visual(patches, grid_thw=grid).last_hidden_state
        conv = self.vqmodel.quant_conv
        features = functional.linear(hidden, conv.weight.flatten(1), conv.bias)
        codes = functional.normalize(self.vqmodel.quantize.embedding.weight.float(), dim=-1)
        return (functional.normalize(features.float(), dim=-1) @ codes.T).unflatten(0, (batch, rows * columns))


def build() -> Tokenizer:
    torch.manual_seed(RECIPE.seed)
    model = Tokenizer()
    # Full-size position vectors would let every background cell have a code of its own.
    nn.init.normal_(model.visual.embeddings.position_embedding.weight, std=0.02)
    nn.init.normal_(model.vqmodel.quantize.embedding.weight)
    return model


def resize(images: torch.Tensor, height: int, width: int) -> torch.Tensor:
    """As the image processor does: bicubic with antialiasing, on bytes."""
    resized = functional.interpolate(images, (height, width), mode="bicubic", antialias=True)
    return ((resized + 1) * 127.5).round().clamp(0, 255) / 127.5 - 1


def large_view(chosen: list[scenes.Scene]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pictures as the large grid sees them, at half size, and the labels."""
    images = training.to_tensor([scenes.draw(scene, SIZE, SIZE) for scene in chosen])
    wanted = np.stack([scenes.large_labels(scene, SIZE, SIZE).ravel() for scene in chosen])
    return resize(images, SIZE // 2, SIZE // 2), torch.from_numpy(wanted)


def preview_view(chosen: list[scenes.Scene]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same for the preview grid."""
    rows, columns = tokens.preview_grid(SIZE, SIZE)
    images = training.to_tensor([scenes.draw(scene, SIZE, SIZE) for scene in chosen])
    labels = [scenes.preview_labels(scene, SIZE, SIZE, (rows, columns)).ravel() for scene in chosen]
    return resize(images, PATCH * rows, PATCH * columns), torch.from_numpy(np.stack(labels))


def classification(model: Tokenizer, images: torch.Tensor, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss with background and things weighed alike, and the share of things' cells that get the right id."""
    # The plain attention kernel: short sequences, see dit.py.
    with torch.autocast("cpu", torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
        cosines = model.cosines(images)
    each = functional.cross_entropy(COSINE_SCALE * cosines.flatten(0, 1), wanted.flatten(), reduction="none")
    thing = wanted.flatten() >= len(scenes.BACKGROUNDS)
    right = (cosines.argmax(-1).flatten() == wanted.flatten())[thing].float().mean()
    return each[thing].mean() + each[~thing].mean(), right


def losses(model: Tokenizer, generator: np.random.Generator) -> dict[str, torch.Tensor]:
    chosen = training.random_scenes(generator, BATCH_LARGE)
    large, large_right = classification(model, *large_view(chosen))
    preview, preview_right = classification(model, *preview_view(chosen[:BATCH_PREVIEW]))
    return {
        "loss": large + preview,
        "large": large,
        "preview": preview,
        "large_right": large_right,
        "preview_right": preview_right,
    }


@torch.no_grad()
def accuracy(model: Tokenizer, kind: str, count: int) -> dict[str, float]:
    """Share of all cells of held-out pictures whose id is the label."""
    chosen = scenes.held_out_scenes(kind, count)
    result = {}
    for name, (images, wanted) in {"large": large_view(chosen), "preview": preview_view(chosen)}.items():
        ids = torch.cat([model.cosines(part).argmax(-1) for part in images.split(8)])
        result[name] = (ids == wanted).float().mean().item()
    return result


def main() -> None:
    options = training.parse_options(__doc__)
    model = build().train()
    trainer = training.Trainer(RECIPE, model, options)

    def report(path: Path) -> None:
        """Ids have no picture of their own: numbers instead of a sheet."""
        lines = [f"{kind}: {accuracy(model, kind, 48)}" for kind in scenes.KINDS]
        path.with_suffix(".txt").write_text("\n".join(lines) + "\n")
        print("\n".join(lines), flush=True)

    trainer.run(lambda _step, generator: losses(model, generator), report)


if __name__ == "__main__":
    main()
