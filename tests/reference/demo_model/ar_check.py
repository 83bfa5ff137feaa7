"""Checks what `tokens.py` computes by hand against transformers: prompt ids, grids and all positions.

    python -m demo_model.ar_check CHECKPOINT
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from transformers import AutoProcessor, GlmImageForConditionalGeneration

from demo_model import captions, scenes, tokens

SIZES = ((128, 128), (128, 192), (192, 128), (160, 160), (96, 256))


def check(checkpoint: Path, height: int, width: int) -> None:
    processor = AutoProcessor.from_pretrained(checkpoint / "processor")
    model = GlmImageForConditionalGeneration.from_pretrained(checkpoint / "vision_language_encoder").model
    generator = np.random.default_rng(0)
    for kind in scenes.KINDS:
        text = captions.caption(scenes.random_scene(generator, kind, "train"), generator)
        messages = [[{"role": "user", "content": [{"type": "text", "text": text}]}]]
        inputs = processor.apply_chat_template(
            messages, tokenize=True, target_h=height, target_w=width, return_dict=True, return_tensors="pt"
        )
        [ids] = tokens.prompt_ids([text], height, width)
        assert inputs["input_ids"][0].tolist() == ids, text
        grids = [[1, *tokens.large_grid(height, width)], [1, *tokens.preview_grid(height, width)]]
        assert inputs["image_grid_thw"].tolist() == grids
        positions, _ = model.get_rope_index(
            inputs["input_ids"], inputs["image_grid_thw"], inputs["images_per_sample"], inputs["attention_mask"]
        )
        assert torch.equal(positions[:, 0], torch.arange(len(ids)).expand(3, -1))
        ours = torch.from_numpy(tokens.visual_positions(len(ids), height, width))
        assert torch.equal(model._cached_decode_position_ids[0], ours)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    arguments = parser.parse_args()
    for size in SIZES:
        check(arguments.checkpoint, *size)
        print(size, "equal")
