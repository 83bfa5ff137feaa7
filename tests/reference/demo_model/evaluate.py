"""How good the demo model is, by the real diffusers pipeline and by a probe of each stage.

    python -m demo_model.evaluate CHECKPOINT [--count 200] [--steps 50] [--sheet sheet.png]
    python -m demo_model.evaluate CHECKPOINT --probe FOLDER     # the stages one by one, from their own weights

The figures that count are the judge's on pictures of the Rust services; these take no services and no Rust.
"""

import argparse
import time
from pathlib import Path

from demo_model import training  # noqa: I001  first: it sets how OpenMP waits

import numpy as np
import torch
from diffusers import GlmImagePipeline

from demo_model import ar, checker, config, dit, latents, scenes, vae, vq

BATCH = 20


def as_arrays(pictures: torch.Tensor) -> list[np.ndarray]:
    return list((pictures.clamp(-1, 1) * 127.5 + 127.5).round().byte().permute(0, 2, 3, 1).numpy())


def run_pipeline(pipeline: GlmImagePipeline, chosen: list, texts: list[str], arguments: argparse.Namespace) -> list:
    """In batches: one kind's captions have equally many glyph tokens."""
    pictures = []
    for start in range(0, len(chosen), BATCH):
        part = texts[start : start + BATCH]
        seeds = range(arguments.seed + start, arguments.seed + start + len(part))
        pictures += pipeline(
            prompt=part,
            height=checker.SIZE,
            width=checker.SIZE,
            num_inference_steps=arguments.steps,
            guidance_scale=1.5,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
        ).images
    return [np.array(picture) for picture in pictures]


def probe(folder: Path, count: int, steps: int) -> None:
    """Each stage fed with what its predecessor should have said."""
    tokenizer, language_model, painter = vq.build().eval(), ar.build().eval(), dit.build().eval()
    for stage, model in ((vq, tokenizer), (ar, language_model), (dit, painter)):
        training.load_weights(folder, stage.RECIPE.name, model)
    cache, decoder = latents.load(folder), vae.load(folder)
    for kind in scenes.KINDS:
        chosen = scenes.held_out_scenes(kind, count)
        images = training.to_tensor([scenes.draw(scene, checker.SIZE, checker.SIZE) for scene in chosen])
        with torch.no_grad():
            decoded = [decoder.decode(decoder.encode(part).latent_dist.mode()).sample for part in images.split(BATCH)]
        print(kind, "vae     ", checker.shares(chosen, as_arrays(torch.cat(decoded))), flush=True)
        print(kind, "vq      ", vq.accuracy(tokenizer, kind, count), flush=True)
        print(kind, "ar      ", ar.accuracy(language_model, kind, count), flush=True)
        painted = []
        for start in range(0, count, BATCH):
            painted.append(decode_float(decoder, cache, dit.paint(painter, chosen[start : start + BATCH], steps)))
        print(kind, "dit+vae ", checker.shares(chosen, as_arrays(torch.cat(painted))), flush=True)


def decode_float(decoder: torch.nn.Module, cache: latents.Latents, x: torch.Tensor) -> torch.Tensor:
    return dit.decode(decoder, cache, x.float())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--count", type=int, default=200, help="held-out captions per kind")
    parser.add_argument("--steps", type=int, default=50, help="of the denoise loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sheet", type=Path, help="where to put the first pictures of each kind")
    parser.add_argument("--probe", type=Path, metavar="FOLDER")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.probe:
        probe(arguments.probe, arguments.count, arguments.steps)
        return
    pipeline = GlmImagePipeline.from_pretrained(arguments.checkpoint, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    # A half-trained model may write ids past the codebook; the services forbid them too.
    forbidden = list(range(config.CODEBOOK_SIZE, pipeline.vision_language_encoder.lm_head.out_features))
    pipeline.vision_language_encoder.generation_config.suppress_tokens = forbidden
    shown = []
    for kind in scenes.KINDS:
        chosen = scenes.held_out_scenes(kind, arguments.count)
        texts = training.captions_of(chosen, np.random.default_rng(1))
        begun = time.monotonic()
        pictures = run_pipeline(pipeline, chosen, texts, arguments)
        seconds = (time.monotonic() - begun) / len(chosen)
        print(kind, checker.shares(chosen, pictures), f"{seconds:.2f} s a picture", flush=True)
        for scene, text, picture in zip(chosen, texts, pictures, strict=True):
            if checker.check(scene, picture)["all"] < 1:
                print("  not right:", text, flush=True)
        shown += pictures[:16]
    if arguments.sheet:
        training.save_sheet(arguments.sheet, training.to_tensor(shown), columns=16)


if __name__ == "__main__":
    main()
