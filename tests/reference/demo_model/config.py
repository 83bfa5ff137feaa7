"""Sizes of fresco-demo: the tiny checkpoint's files with other numbers, so that the layout is written down once.

25 MB in all is the limit; the DiT takes most of it, because it has to draw.
"""

import tiny_config as base
from demo_model import scenes

# The same as the tiny model's: its ids of start and end token and its tokenizer fit as they are.
CODEBOOK_SIZE = base.CODEBOOK_SIZE
assert scenes.CODES <= CODEBOOK_SIZE

VAE = base.VAE | {
    "block_out_channels": [32, 32, 64, 64],
    # 16 make the DiT's work harder and these flat pictures no better.
    "latent_channels": 8,
    "latents_mean": [0.0] * 8,  # measured after training: vae.py, `measure_latents`
    "latents_std": [1.0] * 8,
    # Four channels a group as published; one a group is instance norm, which loses flat colours.
    "norm_num_groups": 8,
    "sample_size": 128,
}

TEXT_ENCODER = base.TEXT_ENCODER | {"d_ff": 256, "d_kv": 32, "d_model": 96, "num_heads": 3, "num_layers": 2}

TRANSFORMER = base.TRANSFORMER | {
    "in_channels": VAE["latent_channels"],
    "out_channels": VAE["latent_channels"],
    "num_attention_heads": 6,
    "num_layers": 6,
    "text_embed_dim": TEXT_ENCODER["d_model"],
    "time_embed_dim": 128,
}

_TEXT_CONFIG = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_attention_heads": 6,
    "num_hidden_layers": 4,
    # The published values leave the column 1/1000 rad a step at 16 frequencies: invisible. Here all 16 frequencies lie
    # between 1 and 0.1 rad, so that each axis has some that tell neighbours apart and none that wraps in 40 steps.
    "rope_parameters": {
        "mrope_section": [4, 6, 6],
        "partial_rotary_factor": 1.0,
        "rope_theta": 10.0,
        "rope_type": "default",
    },
}
_VISION_CONFIG = {"depth": 3, "hidden_size": 128, "intermediate_size": 256, "num_heads": 4}
_VQ_CONFIG = {"embed_dim": 32, "latent_channels": _VISION_CONFIG["hidden_size"]}


def vision_language_encoder(vocab: dict[str, int]) -> dict:
    # Rounded up, like the published 168064 for 167864 ids.
    vocab_size = -(-(max(vocab.values()) + 1) // 32) * 32
    values = base.vision_language_encoder(vocab_size, vocab["<|endoftext|>"], vocab["<|image|>"])
    values["text_config"] |= _TEXT_CONFIG
    values["vision_config"] |= _VISION_CONFIG
    values["vq_config"] |= _VQ_CONFIG
    return values


def generation_config(vocab: dict[str, int]) -> dict:
    """Cooler than published: a caption here names one picture, so what is not likeliest is wrong."""
    return base.generation_config(vocab["<|endoftext|>"]) | {"temperature": 0.6, "top_k": 20, "top_p": 0.8}
