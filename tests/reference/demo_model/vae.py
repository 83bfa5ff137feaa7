"""Stage 1: the VAE.

    python -m demo_model.vae FOLDER

Mostly 64 x 64 crops, then whole pictures: the group norms see the whole picture when it is painted.
"""

from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch.nn import functional

from demo_model import config, scenes, training

SIZE = 128
CROP = 64
CROP_SHARE = 0.7  # of the steps
BATCH_CROPS, BATCH_PICTURES = 24, 6
# Per latent number against losses per pixel value. Enough to keep latents near unit size and the decoder used to noise.
KL_WEIGHT = 1e-3
RECIPE = training.Recipe("vae", steps=2000, learning_rate=1.5e-3, seed=1)


def build() -> AutoencoderKL:
    torch.manual_seed(RECIPE.seed)
    return AutoencoderKL.from_config(config.VAE)


def load(folder: Path) -> AutoencoderKL:
    model = build().eval().requires_grad_(False)
    training.load_weights(folder, RECIPE.name, model)
    return model


def pictures(step: int, generator: np.random.Generator) -> torch.Tensor:
    if step >= CROP_SHARE * RECIPE.steps:
        whole = training.random_scenes(generator, BATCH_PICTURES)
        return training.to_tensor([scenes.draw(scene, SIZE, SIZE) for scene in whole])
    crops = []
    for scene in training.random_scenes(generator, BATCH_CROPS):
        top, left = generator.integers(SIZE - CROP + 1, size=2)
        crops.append(scenes.draw(scene, SIZE, SIZE)[top : top + CROP, left : left + CROP])
    return training.to_tensor(crops)


def losses(model: AutoencoderKL, images: torch.Tensor) -> dict[str, torch.Tensor]:
    # Not channels last: the backward pass of group norm is then slower than the convolutions gain.
    images = images.contiguous()
    with torch.autocast("cpu", torch.bfloat16):
        posterior = model.encode(images).latent_dist
        decoded = model.decode(posterior.sample()).sample
    decoded = decoded.float()
    absolute, squared = functional.l1_loss(decoded, images), functional.mse_loss(decoded, images)
    mean, log_variance = posterior.mean.float(), posterior.logvar.float()
    kl = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
    loss = absolute + squared + KL_WEIGHT * kl
    # Signal range 2, hence the 4.
    return {"loss": loss, "l1": absolute, "kl": kl, "psnr": 10 * torch.log10(4 / squared)}


def sheet(model: AutoencoderKL, path: Path) -> None:
    generator = np.random.default_rng(0)
    chosen = [scenes.random_scene(generator, kind, "held_out") for kind in scenes.KINDS for _ in range(4)]
    chosen += [scenes.random_scene(generator, "letter", "held_out") for _ in range(4)]
    images = training.to_tensor([scenes.draw(scene, SIZE, SIZE) for scene in chosen])
    decoded = model.decode(model.encode(images).latent_dist.mode()).sample
    training.save_sheet(path, torch.stack([images, decoded], dim=1).flatten(0, 1), columns=8)


def main() -> None:
    options = training.parse_options(__doc__)
    model = build()
    trainer = training.Trainer(RECIPE, model, options)
    trainer.run(lambda step, generator: losses(model, pictures(step, generator)), lambda path: sheet(model, path))


if __name__ == "__main__":
    main()
