"""Writes a tiny random checkpoint in the file layout of the published GLM-Image repository.

    python make_checkpoint.py ../data/tiny

Every weight comes from a numpy generator seeded with its own name: the bytes do not depend on the order of the
tensors, on torch's random numbers or on the vector width of the CPU.
"""

import argparse
import json
import math
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, GlmImageTransformer2DModel
from safetensors.torch import save_file
from transformers import GlmImageConfig, GlmImageForConditionalGeneration, T5Config, T5EncoderModel

import tiny_config as config
import tiny_tokenizer

Initialiser = Callable[[str, tuple[int, ...]], np.ndarray]

# --- one random tensor ---------------------------------------------------------------------------------------------


def normal(name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> np.ndarray:
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    return mean + std * generator.standard_normal(shape)


def fan_in_normal(name: str, shape: tuple[int, ...], gain: float = 1.0) -> np.ndarray:
    """Unit-variance inputs give outputs of variance gain squared."""
    return normal(name, shape, gain / math.sqrt(math.prod(shape[1:])))


def matrix_bias_or_norm(name: str, shape: tuple[int, ...], gain: float = 1.0) -> np.ndarray:
    if len(shape) > 1:
        return fan_in_normal(name, shape, gain)
    # Vectors called weight are norm weights. Off 1 and off 0, so that forgetting one shows in the goldens.
    return normal(name, shape, 0.1, mean=1.0 if name.endswith("weight") else 0.0)


# --- the AR model --------------------------------------------------------------------------------------------------

# A random model would sample ids past the codebook inside the grid, and the reference pipeline then crashes. So
# coordinate 0 of the residual stream is the same positive constant for every token, and lm_head turns it into a
# large negative logit for those ids. They stay sampleable in principle: a port must still mask them.
CONSTANT_COORDINATE = 4.0
FORBIDDEN_ROW_WEIGHT = -10.0
# Logits spread over about 2 units: top-k 50 and top-p 0.75 both cut, and about twenty ids stay likely.
LOGIT_GAIN = 2.2


def init_language_model(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith("embed_tokens.weight"):
        weight = normal(name, shape, 1.0)
        weight[:, 0] = CONSTANT_COORDINATE
        return weight
    if name == "lm_head.weight":
        weight = fan_in_normal(name, shape, LOGIT_GAIN)
        weight[:, 0] = 0.0
        weight[config.CODEBOOK_SIZE :, 0] = FORBIDDEN_ROW_WEIGHT
        return weight
    if "layernorm.weight" in name:
        weight = normal(name, shape, 0.1, mean=0.9)
        # Post norms write to the residual stream, so a zero keeps coordinate 0 constant; input norms read it, and
        # a small weight keeps the constant from drowning the rest.
        weight[0] = 0.0 if "post_self_attn" in name or "post_mlp" in name else 0.1
        return weight
    gain = 1.5 if "q_proj.weight" in name or "k_proj.weight" in name else 1.0
    return matrix_bias_or_norm(name, shape, gain)


def init_vision(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name.endswith(("position_embedding.weight", "quantize.embedding.weight")):
        return normal(name, shape, 0.5)
    return matrix_bias_or_norm(name, shape)


def init_vision_language_encoder(name: str, shape: tuple[int, ...]) -> np.ndarray:
    vision = name.startswith(("model.visual.", "model.vqmodel."))
    return (init_vision if vision else init_language_model)(name, shape)


# --- T5, DiT, VAE --------------------------------------------------------------------------------------------------


def init_text_encoder(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name in ("shared.weight",) or "relative_attention_bias" in name:
        return normal(name, shape, 1.0)
    # T5 does not divide scores by sqrt(d_kv): small q and k keep the softmax from saturating.
    gain = 0.5 if name.endswith((".q.weight", ".k.weight")) else 1.0
    return matrix_bias_or_norm(name, shape, gain)


def init_transformer(name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name == "prior_token_embedding.weight":
        return normal(name, shape, 1.0)
    if name == "image_projector.proj.weight":
        return orthogonal_columns(name, shape)
    if name == "proj_out.weight":
        # Reading the patch back out makes the output look like a velocity (noise minus data): the steps remove
        # noise and leave a picture that follows the prior tokens.
        columns = orthogonal_columns("image_projector.proj.weight", shape[::-1])
        return 0.5 * columns.T + fan_in_normal(name, shape, 0.5)
    if "norm1.linear" in name or "norm_out.linear" in name:
        # A trained adaLN starts from zero; a random one must not, or all gates and scales would go untested.
        return normal(name, shape, 0.06 if name.endswith("weight") else 0.3)
    gain = 2.0 if name.startswith(("prior_projector", "glyph_projector", "time_condition")) else 1.0
    return matrix_bias_or_norm(name, shape, gain)


def orthogonal_columns(name: str, shape: tuple[int, ...]) -> np.ndarray:
    # QR by LAPACK may differ in the last bits between builds; bf16 rounding hides that.
    return np.linalg.qr(normal(name, shape, 1.0))[0]


def init_vae(name: str, shape: tuple[int, ...]) -> np.ndarray:
    # The picture stays inside [-1, 1] for the most part, or the clamp would hide errors.
    gain = 0.75 if name == "decoder.conv_out.weight" else 1.2
    return matrix_bias_or_norm(name, shape, gain)


# --- files ---------------------------------------------------------------------------------------------------------


def fill(model: torch.nn.Module, initialise: Initialiser, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Names and shapes come from the real classes (built on the meta device), values from `initialise`."""
    tensors = {}
    for name, parameter in model.state_dict().items():
        if name == "encoder.embed_tokens.weight":
            continue  # tied to shared.weight; the published file holds that one only
        values = initialise(name, tuple(parameter.shape))
        tensors[name] = torch.from_numpy(values).to(torch.float32).to(dtype).contiguous()
    return tensors


def split_evenly(tensors: dict[str, torch.Tensor], shards: int) -> list[dict[str, torch.Tensor]]:
    """Consecutive tensors, so a layer may straddle two files, as in the published shards."""
    total = sum(t.nbytes for t in tensors.values())
    parts: list[dict[str, torch.Tensor]] = [{} for _ in range(shards)]
    done = 0
    for name, tensor in tensors.items():
        parts[min(done * shards // total, shards - 1)][name] = tensor
        done += tensor.nbytes
    return parts


def save_weights(folder: Path, stem: str, tensors: dict[str, torch.Tensor], shards: int) -> None:
    if shards == 1:
        save_file(tensors, folder / f"{stem}.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for number, part in enumerate(split_evenly(tensors, shards), start=1):
        file = f"{stem}-{number:05}-of-{shards:05}.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    metadata = {"total_size": sum(t.nbytes for t in tensors.values())}
    write_json(
        folder / f"{stem}.safetensors.index.json",
        {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))},
    )


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save_tokenizers(root: Path) -> dict[str, int]:
    tokenizer = tiny_tokenizer.ar_tokenizer()
    processor = root / "processor"
    tokenizer.save(str(processor / "tokenizer.json"))
    vocab = tokenizer.get_vocab()
    write_json(processor / "tokenizer_config.json", tiny_tokenizer.ar_tokenizer_config(vocab))
    write_json(processor / "preprocessor_config.json", config.PREPROCESSOR)
    (processor / "chat_template.jinja").write_text(config.CHAT_TEMPLATE, encoding="utf-8")
    for name, value in tiny_tokenizer.byt5_files().items():
        write_json(root / "tokenizer" / name, value)
    return vocab


def save_vision_language_encoder(folder: Path, vocab: dict[str, int]) -> None:
    # Rounded up, like the published 168064 for 167864 ids: some embedding rows have no token.
    vocab_size = math.ceil((max(vocab.values()) + 1) / 32) * 32
    pad_id = vocab["<|endoftext|>"]
    values = config.vision_language_encoder(vocab_size, pad_id, vocab["<|image|>"])
    write_json(folder / "config.json", values)
    write_json(folder / "generation_config.json", config.generation_config(pad_id))
    with torch.device("meta"):
        model = GlmImageForConditionalGeneration(GlmImageConfig.from_dict(values))
    save_weights(folder, "model", fill(model, init_vision_language_encoder, torch.bfloat16), shards=4)


def save_diffusers_model(folder: Path, model_class: type, values: dict, initialise: Initialiser, shards: int) -> None:
    write_json(folder / "config.json", values)
    with torch.device("meta"):
        model = model_class.from_config(values)
    save_weights(folder, "diffusion_pytorch_model", fill(model, initialise, torch.bfloat16), shards)


def save_text_encoder(folder: Path) -> None:
    write_json(folder / "config.json", config.TEXT_ENCODER)
    with torch.device("meta"):
        model = T5EncoderModel(T5Config.from_dict(config.TEXT_ENCODER))
    save_weights(folder, "model", fill(model, init_text_encoder, torch.float32), shards=1)


def save_checkpoint(root: Path) -> None:
    shutil.rmtree(root, ignore_errors=True)
    components = [name for name in config.MODEL_INDEX if not name.startswith("_")]
    for name in components:
        (root / name).mkdir(parents=True)
    write_json(root / "model_index.json", config.MODEL_INDEX)
    write_json(root / "scheduler" / "scheduler_config.json", config.SCHEDULER)
    vocab = save_tokenizers(root)
    save_vision_language_encoder(root / "vision_language_encoder", vocab)
    save_text_encoder(root / "text_encoder")
    save_diffusers_model(
        root / "transformer", GlmImageTransformer2DModel, config.TRANSFORMER, init_transformer, shards=3
    )
    save_diffusers_model(root / "vae", AutoencoderKL, config.VAE, init_vae, shards=1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where to write; an existing folder is replaced")
    save_checkpoint(parser.parse_args().folder)
