"""Listens at every stage boundary of a real GlmImagePipeline without changing what it computes."""

from collections.abc import Callable
from typing import Any

import torch
from diffusers import GlmImagePipeline

# Logits of the first steps find a wrong mask or position at once, later ones find a cache that drifts.
FIRST_LOGIT_STEPS = 5
LOGIT_STEP_INTERVAL = 64


def logit_steps(tokens: int) -> list[int]:
    return sorted({*range(FIRST_LOGIT_STEPS), *range(0, tokens, LOGIT_STEP_INTERVAL), tokens - 1})


class Recorder:
    """`tensors` and `facts` fill up while the pipeline runs; `clear` starts the next case."""

    def __init__(self, pipeline: GlmImagePipeline) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self.facts: dict[str, Any] = {}
        self._pipeline = pipeline
        self._calls: dict[str, int] = {}
        self._listen_to_ar()
        self._listen_to_text_encoder()
        self._listen_to_transformer()
        self._listen_to_vae()

    def clear(self) -> None:
        self.tensors, self.facts, self._calls = {}, {}, {}

    def keep(self, name: str, tensor: torch.Tensor) -> None:
        # A copy: the scheduler and the cache reuse buffers.
        self.tensors[name] = tensor.detach().clone().contiguous()

    def on_step_end(self, _pipeline: GlmImagePipeline, step: int, _timestep: Any, kwargs: dict) -> dict:
        self.keep(f"denoise.latents_after_step.{step}", kwargs["latents"])
        return {}

    def _next_call(self, name: str) -> int:
        self._calls[name] = self._calls.get(name, -1) + 1
        return self._calls[name]

    def _after(self, owner: object, method: str, listen: Callable[..., None]) -> None:
        original = getattr(owner, method)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            listen(result, *args, **kwargs)
            return result

        setattr(owner, method, wrapped)

    # --- AR --------------------------------------------------------------------------------------------------------

    def _listen_to_ar(self) -> None:
        processor, model = self._pipeline.processor, self._pipeline.vision_language_encoder
        self._after(processor, "prepare_inputs_layout", self._on_expanded_text)
        self._after(self._pipeline, "_compute_generation_params", self._on_generation_params)
        self._after(self._pipeline, "generate_prior_tokens", lambda out, **_: self.keep("ar.prior_token_ids", out[0]))
        self._after(self._pipeline, "_extract_large_image_tokens", lambda out, *_: self.keep("ar.large_ids", out))
        self._after(model, "_get_logits_processor", self._on_logits_processor)
        model.model.language_model.register_forward_pre_hook(self._on_language_model, with_kwargs=True)
        self._wrap_generate(model)

    def _on_expanded_text(self, result: tuple, *_args: Any, **_kwargs: Any) -> None:
        self.facts["expanded_text"] = result[1][0]

    def _on_generation_params(self, result: tuple, *_args: Any, **_kwargs: Any) -> None:
        names = ("max_new_tokens", "large_image_start_offset", "token_h", "token_w")
        self.facts["generation"] = dict(zip(names, result, strict=True))

    def _on_logits_processor(self, processors: list, *_args: Any, **_kwargs: Any) -> None:
        # What transformers really applies, in its order: shows the top_k of 50 that no file mentions.
        self.facts["warpers"] = [
            {"name": type(p).__name__}
            | {key: getattr(p, key) for key in ("temperature", "top_k", "top_p") if hasattr(p, key)}
            for p in processors
        ]

    def _on_language_model(self, _module: torch.nn.Module, _args: tuple, kwargs: dict) -> None:
        if self._next_call("language_model") == 0:
            self.keep("ar.prefill_position_ids", kwargs["position_ids"][:, 0])

    def _wrap_generate(self, model: torch.nn.Module) -> None:
        original = model.generate

        def generate(**kwargs: Any) -> torch.Tensor:
            outputs = original(**kwargs, return_dict_in_generate=True, output_logits=True, output_scores=True)
            self._on_generated(model, kwargs, outputs)
            return outputs.sequences

        model.generate = generate

    def _on_generated(self, model: torch.nn.Module, inputs: dict, outputs: Any) -> None:
        sampled = outputs.sequences[0, inputs["input_ids"].shape[1] :]
        steps = logit_steps(len(sampled))
        self.keep("ar.input_ids", inputs["input_ids"][0])
        self.keep("ar.image_grid_thw", inputs["image_grid_thw"])
        self.keep("ar.decode_position_ids", model.model._cached_decode_position_ids[0])
        self.keep("ar.sampled_ids", sampled)
        self.keep("ar.logit_steps", torch.tensor(steps))
        self.keep("ar.logits", torch.cat([outputs.logits[step] for step in steps]))
        self.keep("ar.warped_logits", torch.cat([outputs.scores[step] for step in steps]))

    # --- T5, DiT, VAE ----------------------------------------------------------------------------------------------

    def _listen_to_text_encoder(self) -> None:
        self._after(self._pipeline, "encode_prompt", self._on_prompt_embeds)
        self._pipeline.text_encoder.register_forward_hook(self._on_text_encoder, with_kwargs=True)

    def _on_text_encoder(self, _module: torch.nn.Module, args: tuple, kwargs: dict, output: Any) -> None:
        name = ("glyph", "negative")[self._next_call("text_encoder")]
        self.keep(f"{name}.input_ids", args[0])
        self.keep(f"{name}.attention_mask", kwargs["attention_mask"])
        self.keep(f"{name}.last_hidden_state", output.last_hidden_state)

    def _on_prompt_embeds(self, result: tuple, *_args: Any, **_kwargs: Any) -> None:
        self.keep("glyph.prompt_embeds", result[0])
        self.keep("negative.prompt_embeds", result[1])

    def _listen_to_transformer(self) -> None:
        transformer = self._pipeline.transformer
        self._after(self._pipeline, "prepare_latents", lambda out, **_: self.keep("denoise.initial_latents", out))
        transformer.transformer_blocks[0].register_forward_hook(self._on_block)
        transformer.register_forward_hook(self._on_transformer, with_kwargs=True)

    def _on_block(self, _module: torch.nn.Module, _args: tuple, output: tuple) -> None:
        call = self._next_call("block")
        if call < 2:
            branch = ("cond", "uncond")[call]
            self.keep(f"denoise.step0.{branch}.block0_image", output[0])
            self.keep(f"denoise.step0.{branch}.block0_text", output[1])

    def _on_transformer(self, _module: torch.nn.Module, _args: tuple, kwargs: dict, output: tuple) -> None:
        call = self._next_call("transformer")
        if call < 2:
            self.keep(f"denoise.step0.{('cond', 'uncond')[call]}.output", output[0])
            self.keep("denoise.step0.timestep", kwargs["timestep"])

    def _listen_to_vae(self) -> None:
        self._after(self._pipeline.vae, "decode", self._on_decode)

    def _on_decode(self, result: tuple, latents: torch.Tensor, **_kwargs: Any) -> None:
        self.keep("vae.latents", latents)
        self.keep("vae.decoded", result[0])
        self.keep("denoise.timesteps", self._pipeline.scheduler.timesteps)
        self.keep("denoise.sigmas", self._pipeline.scheduler.sigmas)
