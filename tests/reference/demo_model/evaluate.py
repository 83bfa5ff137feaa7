"""How good the demo model is, by the real diffusers pipeline and by a probe of each stage.

    python -m demo_model.evaluate CHECKPOINT PICTURES [--count 200] [--steps 50] [--sheet sheet.png]
    python -m demo_model.evaluate CHECKPOINT PICTURES --probe FOLDER    # the stages one by one, from their own weights

Pictures go to the folder PICTURES, by the number of their caption, and the judge (`cargo build --release --bin judge`)
says what is right. The figures that count are those of the same judge on pictures of the services.
"""

import argparse
import subprocess
import time
from pathlib import Path

from demo_model import training  # noqa: I001  first: it sets how OpenMP waits

import numpy as np
import torch
from PIL import Image
from diffusers import GlmImagePipeline

from demo_model import ar, config, dit, judge_data, latents, scenes, vae, vq

SIZE = 128
BATCH = 20
JUDGE = Path(__file__).parents[3] / "target/release/judge"


def as_arrays(pictures: torch.Tensor) -> list[np.ndarray]:
    return list((pictures.clamp(-1, 1) * 127.5 + 127.5).round().byte().permute(0, 2, 3, 1).numpy())


def save(folder: Path, kind: str, pictures: list[np.ndarray]) -> None:
    """Under the numbers of their captions in `held_out.jsonl`."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, picture in enumerate(pictures, start=scenes.KINDS.index(kind) * judge_data.COUNT):
        Image.fromarray(picture).save(folder / f"{index:03}.png")


def judge(folder: Path) -> None:
    print(subprocess.run([JUDGE, "--held-out", folder], check=True, text=True, capture_output=True).stdout, flush=True)


def run_pipeline(pipeline: GlmImagePipeline, texts: list[str], arguments: argparse.Namespace) -> list[np.ndarray]:
    """In batches: one kind's captions have equally many glyph tokens."""
    pictures = []
    for start in range(0, len(texts), BATCH):
        part = texts[start : start + BATCH]
        seeds = range(arguments.seed + start, arguments.seed + start + len(part))
        pictures += pipeline(
            prompt=part,
            height=SIZE,
            width=SIZE,
            num_inference_steps=arguments.steps,
            guidance_scale=1.5,
            generator=[torch.Generator().manual_seed(seed) for seed in seeds],
        ).images
    return [np.array(picture) for picture in pictures]


def probe(arguments: argparse.Namespace) -> None:
    """Each stage fed with what its predecessor should have said."""
    folder, count = arguments.probe, arguments.count
    tokenizer, language_model, painter = vq.build().eval(), ar.build().eval(), dit.build().eval()
    for stage, model in ((vq, tokenizer), (ar, language_model), (dit, painter)):
        training.load_weights(folder, stage.RECIPE.name, model)
    cache, decoder = latents.load(folder), vae.load(folder)
    for kind in scenes.KINDS:
        chosen = scenes.held_out_scenes(kind, count)
        images = training.to_tensor([scenes.draw(scene, SIZE, SIZE) for scene in chosen])
        with torch.no_grad():
            decoded = [decoder.decode(decoder.encode(part).latent_dist.mode()).sample for part in images.split(BATCH)]
        save(arguments.pictures / "vae", kind, as_arrays(torch.cat(decoded)))
        print(kind, "vq", vq.accuracy(tokenizer, kind, count), flush=True)
        print(kind, "ar", ar.accuracy(language_model, kind, count), flush=True)
        parts = [chosen[start : start + BATCH] for start in range(0, count, BATCH)]
        painted = [dit.decode(decoder, cache, dit.paint(painter, part, arguments.steps).float()) for part in parts]
        save(arguments.pictures / "dit", kind, as_arrays(torch.cat(painted)))
    for name in ("vae", "dit"):
        print(name, flush=True)
        judge(arguments.pictures / name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--count", type=int, default=judge_data.COUNT, help="held-out captions per kind")
    parser.add_argument("--steps", type=int, default=50, help="of the denoise loop")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sheet", type=Path, help="where to put the first pictures of each kind")
    parser.add_argument("--probe", type=Path, metavar="FOLDER")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.probe:
        probe(arguments)
        return
    pipeline = GlmImagePipeline.from_pretrained(arguments.checkpoint, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    # A half-trained model may write ids past the codebook; the services forbid them too.
    forbidden = list(range(config.CODEBOOK_SIZE, pipeline.vision_language_encoder.lm_head.out_features))
    pipeline.vision_language_encoder.generation_config.suppress_tokens = forbidden
    shown = []
    for kind in scenes.KINDS:
        texts = training.captions_of(scenes.held_out_scenes(kind, arguments.count), np.random.default_rng(1))
        begun = time.monotonic()
        pictures = run_pipeline(pipeline, texts, arguments)
        print(kind, f"{(time.monotonic() - begun) / len(texts):.2f} s a picture", flush=True)
        save(arguments.pictures, kind, pictures)
        shown += pictures[:16]
    judge(arguments.pictures)
    if arguments.sheet:
        training.save_sheet(arguments.sheet, training.to_tensor(shown), columns=16)


if __name__ == "__main__":
    main()
