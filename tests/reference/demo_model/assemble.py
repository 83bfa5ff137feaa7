"""Stage 5: all weights into one checkpoint in the published layout, bf16 but for the T5.

    python -m demo_model.assemble FOLDER CHECKPOINT

The folders of CHECKPOINT are replaced, other files in it are left alone. Stages that are missing keep their random start with a warning, so that the pipeline can be
tried while training goes on.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch

import make_checkpoint
import tiny_config
import tiny_tokenizer
from demo_model import ar, config, dit, tokens, training, vae, vq

SHARDS = {"transformer": 3, "vision_language_encoder": 4}  # as published
BYTES_MAX = 25_000_000


def trained(stage: object, folder: Path) -> dict[str, torch.Tensor]:
    model = stage.build()
    if training.weights_path(folder, stage.RECIPE.name).exists():
        training.load_weights(folder, stage.RECIPE.name, model)
    else:
        print(f"warning: {stage.RECIPE.name} is not trained")
    return model.state_dict()


def part(state: dict[str, torch.Tensor], prefix: str, new_prefix: str = "") -> dict[str, torch.Tensor]:
    return {new_prefix + key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def save(folder: Path, stem: str, tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.bfloat16) -> None:
    contiguous = {name: tensor.to(dtype).contiguous() for name, tensor in tensors.items()}
    make_checkpoint.save_weights(folder, stem, contiguous, SHARDS.get(folder.name, 1))


def save_vision_language_encoder(root: Path, folder: Path, vocab: dict[str, int]) -> None:
    language, picture = trained(ar, folder), trained(vq, folder)
    tensors = part(language, "language_model.", "model.language_model.")
    tensors |= {f"model.{name}": tensor for name, tensor in picture.items()}
    tensors |= part(language, "lm_head.", "lm_head.")
    target = root / "vision_language_encoder"
    make_checkpoint.write_json(target / "config.json", config.vision_language_encoder(vocab))
    make_checkpoint.write_json(target / "generation_config.json", config.generation_config(vocab))
    save(target, "model", tensors)


def save_painter(root: Path, folder: Path) -> None:
    painter = trained(dit, folder)
    make_checkpoint.write_json(root / "transformer" / "config.json", config.TRANSFORMER)
    save(root / "transformer", "diffusion_pytorch_model", part(painter, "transformer."))
    make_checkpoint.write_json(root / "text_encoder" / "config.json", config.TEXT_ENCODER)
    glyphs = part(painter, "text_encoder.")
    glyphs.pop("encoder.embed_tokens.weight", None)  # tied to shared.weight
    save(root / "text_encoder", "model", glyphs, torch.float32)


def save_vae(root: Path, folder: Path) -> None:
    values = dict(config.VAE)
    statistics = folder / "latents.json"
    if statistics.exists():
        numbers = json.loads(statistics.read_text())
        values |= {"latents_mean": numbers["mean"], "latents_std": numbers["std"]}
    make_checkpoint.write_json(root / "vae" / "config.json", values)
    save(root / "vae", "diffusion_pytorch_model", trained(vae, folder))


def assemble(folder: Path, root: Path) -> None:
    for name in (name for name in tiny_config.MODEL_INDEX if not name.startswith("_")):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
    make_checkpoint.write_json(root / "model_index.json", tiny_config.MODEL_INDEX)
    make_checkpoint.write_json(root / "scheduler" / "scheduler_config.json", tiny_config.SCHEDULER)
    vocab = tokens.save_processor(root / "processor")
    for name, value in tiny_tokenizer.byt5_files().items():
        make_checkpoint.write_json(root / "tokenizer" / name, value)
    save_vision_language_encoder(root, folder, vocab)
    save_painter(root, folder)
    save_vae(root, folder)
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    print(f"{size / 1e6:.1f} MB in {root}")
    assert size <= BYTES_MAX, f"{size} bytes are more than {BYTES_MAX}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the stages keep their weights")
    parser.add_argument("checkpoint", type=Path, help="where to write")
    arguments = parser.parse_args()
    assemble(arguments.folder, arguments.checkpoint)


if __name__ == "__main__":
    main()
