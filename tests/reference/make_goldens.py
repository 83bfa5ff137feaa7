"""Runs diffusers' GlmImagePipeline on the tiny checkpoint and saves what crosses each stage boundary.

    python make_goldens.py ../data/tiny ../data/goldens

One CPU thread and fp32 throughout (the bf16 weights are widened), so that a run repeats bit for bit.
"""

import argparse
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

# Before torch starts its thread pools.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL.Image import Image  # noqa: E402
from diffusers import FlowMatchEulerDiscreteScheduler, GlmImagePipeline  # noqa: E402
from diffusers.pipelines.glm_image.pipeline_glm_image import calculate_shift, retrieve_timesteps  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from recorder import Recorder  # noqa: E402


@dataclass(frozen=True)
class Case:
    name: str
    prompt: str
    height: int
    width: int
    num_inference_steps: int
    seed: int
    guidance_scale: float = 1.5


N2_PROMPT = "a quiet harbour with an old lighthouse, morning rain"
N2_SEED = 1000

CASES = (
    Case("t2i_128", "a red circle above a blue square on a white background", 128, 128, 8, 42),
    # Quoted in the opposite order of the reference's patterns: the glyph texts are "left turn", then "Fresco".
    Case("t2i_glyph_96x160", "a poster with the words “Fresco” and 'left turn' under a sun", 96, 160, 4, 7),
    # n = 2 of one prompt is two single runs with seeds s and s + 1, as Fresco defines it.
    Case("t2i_n2_0", N2_PROMPT, 128, 128, 4, N2_SEED),
    Case("t2i_n2_1", N2_PROMPT, 128, 128, 4, N2_SEED + 1),
)

# Four lengths, one target size, own seeds; one has quotes and non-ASCII text.
BATCH_PROMPTS = (
    ("a cat", 3),
    ("the quiet harbour at night, an old lighthouse and the sea", 4),
    ("eine Tasse Kaffee auf dem Tisch, “Guten Morgen”, 早安", 5),
    ("a green fox in the morning rain on the table with a yellow cup and a title, " * 3, 6),
)
BATCH_SIZE = 128

SCHEDULES = ((1024, 1024, 50), (1024, 1024, 30), (512, 512, 50), (128, 128, 8))

# The last two show that the CPU generator keeps only the low 32 bits of a seed.
RNG_SEEDS = (0, 42, 2**32 + 5, 2**62)
RNG_SHAPE = (1, 16, 8, 8)
RNG_DRAWS = 32

GLYPH_PROMPTS = (
    "a red circle on a white background",
    "",
    "a sign that says 'open'",
    'a sign that says "open"',
    "a sign that says “open”",
    "a sign that says 「営業中」",
    "it's a dog's life",
    "the cat's bowl",
    "“first” then 'second' then \"third\" then 「fourth」",
    "「one」 and “two”",
    "'a' \"b\" 'c' \"d\"",
    "an empty '' pair and \"\"",
    "nested \"he said 'go' twice\" here",
    "curly “outer “inner” text”",
    "unbalanced 'left and “right",
    "two lines 'first\nsecond'",
    "emoji '🎨 été' and \"Ünïcödé\"",
    "'a <pad> b'",
    "'stop</s>'",
    "'stop </s> now'",
    "'<extra_id_3>'",
    "'x <extra_id_3> y' \"<unk>\"",
    "' padded '",
    "‘curly single’ quotes are no quotes",
    # Long enough for T5's logarithmic distance buckets (from 8) and for their cap (at 128).
    "a page with '" + "The harbour lay quiet in the rain; nobody had rung the bell since March. " * 2 + "'",
    # Cut at 2048 ids, the end token included.
    "'" + "é" * 1100 + "'",
)
# Embeddings of longer texts would be most of the repository.
GLYPH_EMBEDS_LENGTH_MAX = 256

TOKENIZER_PROMPTS = (
    "a cat",
    "",
    " leading, trailing  and   inner blanks  ",
    "two\nlines\r\n\n and a\ttab",
    "12345 cups, 3.14 pies, it's 7pm: DON'T",
    "a triangle, a lighthouse, a poster",
    "Ünïcödé, e\u0301 (combining), 漢字かな交じり, العربية, 🎨👩‍🎨",
    "no-break\u00a0space, zero\u200bwidth, ideographic\u3000space",
    "<think> is added but not special, <sop>4 4<eop> is",
    "<|dit_token_5|> is text, <|dit_token_512|> is not",
    "{{ messages }} {% raw %} is no template",
    "\\ \" ' ` <b> & \u007f",
)
TOKENIZER_SIZE = (1024, 768)

GRID_SIZES = (
    (1024, 1024), (512, 512), (2048, 2048), (128, 128), (64, 64), (32, 32), (96, 160), (160, 96), (1152, 768), (768, 1152),
    (1024, 1792), (1792, 1024), (1056, 1568), (1088, 1472), (960, 1728), (1728, 960), (512, 2048), (2048, 512), (1280, 992),
)  # fmt: skip


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_table(path: Path, rows: list[dict]) -> None:
    """A JSON list with one row a line: long id lists stay readable in a diff."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def save_tensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    save_file(tensors, path, metadata={"format": "pt"})


def paint(pipeline: GlmImagePipeline, recorder: Recorder, case: Case) -> Image:
    recorder.clear()
    return pipeline(
        prompt=case.prompt,
        height=case.height,
        width=case.width,
        num_inference_steps=case.num_inference_steps,
        guidance_scale=case.guidance_scale,
        generator=torch.Generator().manual_seed(case.seed),
        callback_on_step_end=recorder.on_step_end,
    ).images[0]


def make_case(pipeline: GlmImagePipeline, recorder: Recorder, case: Case, folder: Path) -> None:
    image = paint(pipeline, recorder, case)
    recorder.keep("image", torch.from_numpy(np.array(image)))
    facts = asdict(case) | recorder.facts | {"glyph_texts": pipeline.get_glyph_texts(case.prompt)[0]}
    save_folder = folder / case.name
    save_folder.mkdir()
    write_json(save_folder / "case.json", facts)
    save_tensors(save_folder / "tensors.safetensors", recorder.tensors)
    image.save(save_folder / "image.png")


def make_batch(pipeline: GlmImagePipeline, recorder: Recorder, folder: Path) -> None:
    rows = []
    for prompt, seed in BATCH_PROMPTS:
        recorder.clear()
        pipeline.generate_prior_tokens(
            prompt=prompt, height=BATCH_SIZE, width=BATCH_SIZE, generator=torch.Generator().manual_seed(seed)
        )
        ids = {
            key: recorder.tensors[f"ar.{key}"].flatten().tolist()
            for key in ("input_ids", "sampled_ids", "large_ids", "prior_token_ids")
        }
        rows.append({"prompt": prompt, "seed": seed, "expanded_text": recorder.facts["expanded_text"]} | ids)
    save_folder = folder / "ar_batch4"
    save_folder.mkdir()
    write_json(save_folder / "case.json", {"height": BATCH_SIZE, "width": BATCH_SIZE, "rows": rows})
    save_tensors(save_folder / "tensors.safetensors", left_padded_prefill(pipeline))


def apply_chat_template(pipeline: GlmImagePipeline, prompts: list[str], height: int, width: int) -> dict:
    """The call `generate_prior_tokens` makes."""
    messages = [[{"role": "user", "content": [{"type": "text", "text": prompt}]}] for prompt in prompts]
    return pipeline.processor.apply_chat_template(
        messages,
        tokenize=True,
        padding=len(prompts) > 1,
        target_h=height,
        target_w=width,
        return_dict=True,
        return_tensors="pt",
    )


def left_padded_prefill(pipeline: GlmImagePipeline) -> dict[str, torch.Tensor]:
    """One batched prefill as the reference pads it. The mask is real, so its rows equal the single runs closely."""
    inputs = apply_chat_template(pipeline, [prompt for prompt, _ in BATCH_PROMPTS], BATCH_SIZE, BATCH_SIZE)
    model = pipeline.vision_language_encoder
    positions, _ = model.model.get_rope_index(
        inputs["input_ids"], inputs["image_grid_thw"], inputs["images_per_sample"], inputs["attention_mask"]
    )
    logits = model(**inputs, logits_to_keep=1).logits
    return {
        "batch.input_ids": inputs["input_ids"],
        "batch.attention_mask": inputs["attention_mask"],
        "batch.position_ids": positions,
        "batch.prefill_logits": logits[:, 0].contiguous(),
    }


def make_schedule(config: dict, height: int, width: int, steps: int) -> dict:
    """The lines of `GlmImagePipeline.__call__` that set the timesteps, on a fresh real scheduler."""
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(config)
    image_seq_len = (height // 16) * (width // 16)
    timesteps = np.linspace(scheduler.config.num_train_timesteps, 1.0, steps + 1)[:-1]
    timesteps = timesteps.astype(np.int64).astype(np.float32)
    sigmas = timesteps / scheduler.config.num_train_timesteps
    mu = calculate_shift(image_seq_len, *(config[k] for k in ("base_image_seq_len", "base_shift", "max_shift")))
    timesteps, _ = retrieve_timesteps(scheduler, steps, "cpu", timesteps, sigmas, mu=mu)
    return {
        "height": height,
        "width": width,
        "num_inference_steps": steps,
        "mu": float(mu),
        "timesteps": timesteps.tolist(),
        "sigmas": scheduler.sigmas.tolist(),
    }


def make_rng(folder: Path) -> None:
    tensors = {}
    probabilities = torch.softmax(torch.linspace(-6.0, 6.0, 528), dim=-1)
    # As after top-p: most of the vocabulary has no mass, yet still takes its share of the random stream.
    probabilities[:300] = 0.0
    probabilities = (probabilities / probabilities.sum()).unsqueeze(0)
    tensors["multinomial.probabilities"] = probabilities
    for seed in RNG_SEEDS:
        tensors[f"randn.{seed}"] = torch.randn(RNG_SHAPE, generator=torch.Generator().manual_seed(seed))
        # Under 16 elements torch takes a scalar path with other values.
        tensors[f"randn_8.{seed}"] = torch.randn(8, generator=torch.Generator().manual_seed(seed))
        generator = torch.Generator().manual_seed(seed)
        draws = [torch.multinomial(probabilities, 1, generator=generator)[0] for _ in range(RNG_DRAWS)]
        tensors[f"multinomial.{seed}"] = torch.cat(draws)
        check_global_stream(seed, tensors[f"multinomial.{seed}"], probabilities)
    save_tensors(folder / "rng.safetensors", tensors)
    write_json(folder / "rng.json", {"seeds": list(RNG_SEEDS), "shape": list(RNG_SHAPE), "draws": RNG_DRAWS})


def check_global_stream(seed: int, own: torch.Tensor, probabilities: torch.Tensor) -> None:
    """The reference samples from the global generator, a server from one per request: the same stream."""
    torch.manual_seed(seed)
    shared = torch.cat([torch.multinomial(probabilities, 1)[0] for _ in range(RNG_DRAWS)])
    assert torch.equal(own, shared), f"the global generator differs from an own one for seed {seed}"


def make_glyph_table(pipeline: GlmImagePipeline, recorder: Recorder, folder: Path) -> None:
    rows, tensors = [], {}
    for index, prompt in enumerate(GLYPH_PROMPTS):
        recorder.clear()
        embeds = pipeline._get_glyph_embeds(prompt)
        if embeds.shape[1] <= GLYPH_EMBEDS_LENGTH_MAX:
            tensors[f"prompt_embeds.{index}"] = embeds
        texts = pipeline.get_glyph_texts(prompt)[0]
        rows.append(
            {
                "prompt": prompt,
                "glyph_texts": texts,
                "token_ids": pipeline.tokenizer(texts or [""], max_length=2048, truncation=True).input_ids,
                "input_ids": recorder.tensors["glyph.input_ids"].tolist(),
                "attention_mask": recorder.tensors["glyph.attention_mask"].tolist(),
                "embeds_length": embeds.shape[1],
            }
        )
    write_table(folder / "glyph.json", rows)
    save_tensors(folder / "glyph.safetensors", tensors)


def make_tokenizer_table(pipeline: GlmImagePipeline, recorder: Recorder, folder: Path) -> None:
    height, width = TOKENIZER_SIZE
    rows = []
    for prompt in TOKENIZER_PROMPTS:
        recorder.clear()
        inputs = apply_chat_template(pipeline, [prompt], height, width)
        ids = inputs["input_ids"][0].tolist()
        rows.append({"prompt": prompt, "expanded_text": recorder.facts["expanded_text"], "input_ids": ids})
    write_table(folder / "tokenizer.json", rows)


def make_grid_table(pipeline: GlmImagePipeline, folder: Path) -> None:
    rows = []
    for height, width in GRID_SIZES:
        grids = apply_chat_template(pipeline, ["x"], height, width)["image_grid_thw"]
        max_new_tokens, large_offset, _, _ = pipeline._compute_generation_params(grids, is_text_to_image=True)
        (_, token_h, token_w), (_, preview_h, preview_w) = grids.tolist()
        rows.append(
            {
                "height": height,
                "width": width,
                "token_h": token_h,
                "token_w": token_w,
                "preview_h": preview_h,
                "preview_w": preview_w,
                "max_new_tokens": max_new_tokens,
                "large_image_start_offset": large_offset,
            }
        )
    write_table(folder / "grids.json", rows)


def make_goldens(checkpoint: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pipeline = GlmImagePipeline.from_pretrained(checkpoint, torch_dtype=torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    recorder = Recorder(pipeline)
    for case in CASES:
        make_case(pipeline, recorder, case, folder)
    with torch.no_grad():
        make_batch(pipeline, recorder, folder)
        make_glyph_table(pipeline, recorder, folder)
    make_tokenizer_table(pipeline, recorder, folder)
    make_grid_table(pipeline, folder)
    config = json.loads((checkpoint / "scheduler" / "scheduler_config.json").read_text())
    write_table(folder / "schedule.json", [make_schedule(config, *entry) for entry in SCHEDULES])
    make_rng(folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path, help="where to write; an existing folder is replaced")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    make_goldens(arguments.checkpoint, arguments.folder)
