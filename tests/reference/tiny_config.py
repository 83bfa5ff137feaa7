"""Sizes and JSON files of the tiny checkpoint: the published GLM-Image files with only the sizes replaced."""

CODEBOOK_SIZE = 512
IMAGE_START_ID = CODEBOOK_SIZE
IMAGE_END_ID = CODEBOOK_SIZE + 1
# Published: 16512 = 16384 + 128. A few ids past the end token must exist, because a port has to mask them.
VISION_VOCAB_SIZE = CODEBOOK_SIZE + 16

# The published added tokens in the published order (ids 167841 to 167863 there, the last ones here as well).
SPECIAL_TOKENS = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>",
    "<|image|>", "<|video|>",
)  # fmt: skip
OTHER_ADDED_TOKENS = (
    "<think>", "</think>", "<answer>", "</answer>", "<|begin_of_box|>", "<|end_of_box|>", "<|sep|>",
)  # fmt: skip

DIFFUSERS_VERSION = "0.37.0.dev0"
TRANSFORMERS_VERSION = "5.0.0.dev0"


def dit_token(index: int) -> str:
    return f"<|dit_token_{index}|>"


MODEL_INDEX = {
    "_class_name": "GlmImagePipeline",
    "_diffusers_version": DIFFUSERS_VERSION,
    "processor": ["transformers", "GlmImageProcessor"],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "ByT5Tokenizer"],
    "transformer": ["diffusers", "GlmImageTransformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
    "vision_language_encoder": ["transformers", "GlmImageForConditionalGeneration"],
}

# Published values, nothing scaled: the schedule of the tiny model is the real schedule.
SCHEDULER = {
    "_class_name": "FlowMatchEulerDiscreteScheduler",
    "_diffusers_version": DIFFUSERS_VERSION,
    "base_image_seq_len": 256,
    "base_shift": 0.25,
    "invert_sigmas": False,
    "max_image_seq_len": 4096,
    "max_shift": 0.75,
    "num_train_timesteps": 1000,
    "shift": 1.0,
    "shift_terminal": None,
    "stochastic_sampling": False,
    "time_shift_type": "linear",
    "use_beta_sigmas": False,
    "use_dynamic_shifting": True,
    "use_exponential_sigmas": False,
    "use_karras_sigmas": False,
}

TRANSFORMER = {
    "_class_name": "GlmImageTransformer2DModel",
    "_diffusers_version": DIFFUSERS_VERSION,
    "attention_head_dim": 32,
    "condition_dim": 32,
    "in_channels": 16,
    "num_attention_heads": 4,
    "num_layers": 2,
    "out_channels": 16,
    "patch_size": 2,
    "prior_vq_quantizer_codebook_size": CODEBOOK_SIZE,
    "text_embed_dim": 64,
    "time_embed_dim": 64,
}

VAE = {
    "_class_name": "AutoencoderKL",
    "_diffusers_version": DIFFUSERS_VERSION,
    "act_fn": "silu",
    # Widths change where the published ones do (blocks 2 and 3 of the decoder carry a conv_shortcut).
    "block_out_channels": [16, 32, 48, 48],
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "force_upcast": True,
    "in_channels": 3,
    "latent_channels": 16,
    "latents_mean": [
        -0.2080078125, 1.875, -0.470703125, -1.265625, -1.421875, 0.77734375, -0.3671875, -0.9453125, 0.318359375,
        0.7734375, -0.1884765625, -0.022216796875, -0.220703125, -1.59375, -0.81640625, -0.255859375,
    ],  # fmt: skip
    "latents_std": [
        3.0625, 2.203125, 2.265625, 4.84375, 2.5, 3.9375, 2.203125, 3.03125, 2.1875, 2.046875, 2.71875, 2.390625,
        2.390625, 2.453125, 2.25, 2.15625,
    ],  # fmt: skip
    "layers_per_block": 1,
    "mid_block_add_attention": False,
    "norm_num_groups": 8,
    "out_channels": 3,
    "sample_size": 1024,
    "scaling_factor": 0.18215,
    "shift_factor": None,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "use_post_quant_conv": False,
    "use_quant_conv": False,
}

TEXT_ENCODER = {
    "architectures": ["T5EncoderModel"],
    "classifier_dropout": 0.0,
    "d_ff": 160,
    # heads * d_kv = 48 differs from d_model, as 384 differs from 1472 in the published one.
    "d_kv": 16,
    "d_model": 64,
    "decoder_start_token_id": 0,
    "dense_act_fn": "gelu_new",
    "dropout_rate": 0.1,
    "dtype": "float32",
    "eos_token_id": 1,
    "feed_forward_proj": "gated-gelu",
    "gradient_checkpointing": False,
    "initializer_factor": 1.0,
    "is_encoder_decoder": False,
    "is_gated_act": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "num_decoder_layers": 4,
    "num_heads": 3,
    "num_layers": 2,
    "pad_token_id": 0,
    "relative_attention_max_distance": 128,
    "relative_attention_num_buckets": 32,
    "tie_word_embeddings": False,
    "tokenizer_class": "ByT5Tokenizer",
    "transformers_version": "4.57.3",
    "use_cache": False,
    "vocab_size": 384,
}


def vision_language_encoder(vocab_size: int, pad_id: int, image_id: int) -> dict:
    return {
        "architectures": ["GlmImageForConditionalGeneration"],
        "image_end_token_id": IMAGE_END_ID,
        "image_start_token_id": IMAGE_START_ID,
        "image_token_id": image_id,
        "model_type": "glm_image",
        "text_config": {
            "attention_dropout": 0.0,
            "dtype": "bfloat16",
            "eos_token_id": IMAGE_END_ID,
            "hidden_act": "silu",
            "hidden_size": 128,
            "initializer_range": 0.02,
            "intermediate_size": 320,
            "max_position_embeddings": 131072,
            "model_type": "glm_image_text",
            "num_attention_heads": 4,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "pad_token_id": pad_id,
            "rms_norm_eps": 1e-05,
            "rope_parameters": {
                # 8 frequencies of head_dim 32 * 0.5 / 2, shared out between t, h, w.
                "mrope_section": [2, 3, 3],
                "partial_rotary_factor": 0.5,
                "rope_theta": 10000,
                "rope_type": "default",
            },
            "use_cache": True,
            "vision_vocab_size": VISION_VOCAB_SIZE,
            "vocab_size": vocab_size,
        },
        "transformers_version": TRANSFORMERS_VERSION,
        "vision_config": {
            "attention_bias": True,
            "attention_dropout": 0.0,
            "depth": 2,
            "hidden_act": "gelu",
            "hidden_size": 48,
            # Only sets the size of the position table: (256 / 16) squared rows.
            "image_size": 256,
            "in_channels": 3,
            "intermediate_size": 96,
            "layer_norm_eps": 1e-06,
            "model_type": "glm_image_vision",
            "num_heads": 3,
            "patch_size": 16,
        },
        "vq_config": {
            "embed_dim": 32,
            "in_channels": 3,
            "initializer_range": 0.02,
            "latent_channels": 48,
            "model_type": "glm_image_vqmodel",
            "num_embeddings": CODEBOOK_SIZE,
        },
    }


def generation_config(pad_id: int) -> dict:
    # No top_k on purpose: transformers then applies its default of 50, which a port must know.
    return {
        "do_sample": True,
        "eos_token_id": IMAGE_END_ID,
        "pad_token_id": pad_id,
        "temperature": 0.9,
        "top_p": 0.75,
        "transformers_version": TRANSFORMERS_VERSION,
    }


PREPROCESSOR = {
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "GlmImageImageProcessor",
    "image_std": [0.5, 0.5, 0.5],
    "merge_size": 1,
    "patch_size": 16,
    "processor_class": "GlmImageProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    # 64 squared instead of 512 squared, so that an edit test may use a small source picture.
    "size": {"longest_edge": 2048 * 2048, "shortest_edge": 64 * 64},
    "temporal_patch_size": 1,
}

# No role markers: the published template is not public, this is its behaviour (README.md, "Inferred").
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['content'] is string -%}{{ message['content'] }}"
    "{%- else -%}"
    "{%- for item in message['content'] -%}"
    "{%- if item['type'] == 'image' -%}"
    f"{dit_token(IMAGE_START_ID)}<|image|>{dit_token(IMAGE_END_ID)}"
    "{%- elif item['type'] == 'text' -%}{{ item['text'] }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "\n"
)
