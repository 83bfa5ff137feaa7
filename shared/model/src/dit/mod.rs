//! The diffusion transformer: predicts how the latents of one picture change at one noise level.
//!
//! It sees glyph embeddings and prior tokens, never the prompt. What is the same at every step of a picture
//! (rotary tables, size embedding, projected glyphs and priors) is computed once, in a [`Canvas`] and a
//! [`Conditioning`]; diffusers recomputes it at each of the 2 x steps forwards, with the same bits. At 1024² that
//! saves about 0.4 TFLOP of 58 a forward and costs 2 x 32 MiB (bf16) while a picture is painted.

mod block;
mod config;
mod embed;
mod rope;

use tch::{Device, Kind, Tensor};

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::layers::Linear;
use crate::weights::{LoadOptions, PartReport, Weights};

use block::{Block, Streams, layer_norm};
use embed::{Activation, Projector, TimeEmbedding, Widths, latents_of, patches_of};
use rope::Rope;

pub(crate) use config::DitConfig;

/// Weights of the DiT.
#[derive(Debug)]
pub(crate) struct Dit {
    config: DitConfig,
    device: Device,
    dtype: Kind,
    image_projector: Linear,
    glyph_projector: Projector,
    /// (codebook, width)
    prior_embedding: Tensor,
    prior_projector: Projector,
    time: TimeEmbedding,
    blocks: Vec<Block>,
    norm_out: Linear,
    proj_out: Linear,
}

/// What depends on the size of the picture only.
#[derive(Debug)]
pub(crate) struct Canvas {
    rope: Rope,
    /// (1, time_dim)
    size: Tensor,
}

/// What one forward of the two that guidance needs is told about the picture.
#[derive(Debug)]
pub(crate) struct Conditioning {
    /// Projected glyph embeddings: (1, glyph tokens, width).
    text: Tensor,
    /// Projected prior tokens, added to the patches: (1, patches, width).
    prior: Tensor,
}

/// Whether a forward sees the prior tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prior {
    /// The conditional forward.
    Shown,
    /// The unconditional one: embeddings are zeroed; the projector's biases stay.
    Hidden,
}

impl Dit {
    /// Reads the folder `transformer`.
    ///
    /// # Errors
    ///
    /// Files that are missing, truncated, of another model or with sizes that cannot be.
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        options: LoadOptions,
    ) -> Result<(Self, PartReport)> {
        let dir = checkpoint.part("transformer");
        let config = DitConfig::read(&dir.join("config.json"))?;
        let mut weights = Weights::open(&dir, "diffusion_pytorch_model", options)?;
        let (width, time_dim) = (config.width(), config.time_embed_dim);
        let glyph = Widths {
            input: config.text_embed_dim,
            inner: width,
            output: width,
        };
        let prior = Widths {
            input: width,
            inner: width,
            output: width,
        };
        let dit = Self {
            device: options.device,
            dtype: options.dtype,
            image_projector: Linear::load(
                weights.scope("image_projector.proj"),
                config.patch_numbers(),
                width,
            )?,
            glyph_projector: Projector::load(
                weights.scope("glyph_projector"),
                glyph,
                Activation::Gelu,
            )?,
            prior_embedding: weights.tensor(
                "prior_token_embedding.weight",
                &[config.codebook_size, width],
            )?,
            prior_projector: Projector::load(
                weights.scope("prior_projector"),
                prior,
                Activation::Silu,
            )?,
            time: TimeEmbedding::load(weights.scope("time_condition_embed"), &config)?,
            blocks: (0..config.num_layers)
                .map(|index| {
                    Block::load(
                        weights.scope(&format!("transformer_blocks.{index}")),
                        &config,
                    )
                })
                .collect::<Result<_>>()?,
            norm_out: Linear::load(weights.scope("norm_out.linear"), time_dim, 2 * width)?,
            proj_out: Linear::load(weights.scope("proj_out"), width, config.patch_numbers())?,
            config,
        };
        Ok((dit, weights.finish()?))
    }

    pub(crate) fn config(&self) -> &DitConfig {
        &self.config
    }

    /// Prepares a picture of `height` x `width` pixels, shown as `rows` x `columns` patches.
    ///
    /// # Errors
    ///
    /// What libtorch reports.
    pub(crate) fn canvas(
        &self,
        height: i64,
        width: i64,
        [rows, columns]: [i64; 2],
    ) -> Result<Canvas> {
        let rope = Rope::new(rows, columns, self.config.attention_head_dim, self.device)?;
        Ok(Canvas {
            rope,
            size: self.time.size(height, width)?,
        })
    }

    /// Prepares one kind of forward. `glyphs` is (1, tokens, text_embed_dim), `prior_ids` (1, patches) int64 on
    /// the CPU, each below the codebook size.
    ///
    /// # Errors
    ///
    /// What libtorch reports; an id past the codebook is an index error there.
    pub(crate) fn condition(
        &self,
        glyphs: &Tensor,
        prior_ids: &Tensor,
        prior: Prior,
    ) -> Result<Conditioning> {
        let text = self
            .glyph_projector
            .forward(&glyphs.f_to_kind(self.dtype)?)?;
        let ids = prior_ids.f_to_device(self.device)?;
        let embedded = Tensor::f_embedding(&self.prior_embedding, &ids, -1, false, false)?;
        let embedded = match prior {
            Prior::Shown => embedded,
            Prior::Hidden => embedded.f_mul_scalar(0.0)?,
        };
        Ok(Conditioning {
            text,
            prior: self.prior_projector.forward(&embedded)?,
        })
    }

    /// The predicted velocity (noise minus picture) of `latents` (1, channels, height / 8, width / 8): the same
    /// shape, in the dtype of the weights. `timestep` is the raw training timestep less one.
    ///
    /// # Errors
    ///
    /// What libtorch reports.
    pub(crate) fn velocity(
        &self,
        latents: &Tensor,
        timestep: f32,
        canvas: &Canvas,
        conditioning: &Conditioning,
    ) -> Result<Tensor> {
        let (_, _, height, width) = latents.size4()?;
        let patch = self.config.patch_size;
        let time = self.time.forward(timestep, &canvas.size)?;
        let mut streams = self.enter(latents, conditioning)?;
        for block in &self.blocks {
            streams = block.forward(&streams, &time, &canvas.rope)?;
        }
        let patches = self.leave(&streams.image, &time)?;
        latents_of(
            &patches,
            height.div_euclid(patch),
            width.div_euclid(patch),
            patch,
        )
    }

    /// The streams as the first block gets them.
    fn enter(&self, latents: &Tensor, conditioning: &Conditioning) -> Result<Streams> {
        let latents = latents.f_to_kind(self.dtype)?;
        let image = self
            .image_projector
            .forward(&patches_of(&latents, self.config.patch_size)?)?;
        let image = image.f_add(&conditioning.prior)?; // (1, patches, width)
        Ok(Streams {
            image,
            text: conditioning.text.shallow_clone(),
        })
    }

    /// (1, patches, width) → (1, patches, channels * patch²). Scale comes before shift here, unlike in the blocks,
    /// and `time` gets no second activation.
    fn leave(&self, image: &Tensor, time: &Tensor) -> Result<Tensor> {
        let parts = self
            .norm_out
            .forward(time)?
            .f_unsqueeze(1)?
            .f_chunk(2, -1)?;
        let (scale, shift) = (&parts[0], &parts[1]);
        let normed = layer_norm(image, self.config.width())?;
        self.proj_out
            .forward(&normed.f_mul(&scale.f_add_scalar(1)?)?.f_add(shift)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goldens::{self, CASES, Case, LATENTS_ATOL, Tensors, assert_close};

    #[test]
    fn the_first_block_and_the_output_of_both_forwards_equal_the_reference() {
        let (dit, _) = Dit::load(&goldens::tiny(), goldens::cpu_f32()).unwrap();
        for name in CASES {
            let (case, golden) = (Case::read(name), Tensors::of_case(name));
            let latents = golden.get("denoise.initial_latents");
            let timestep = golden.get("denoise.step0.timestep").double_value(&[0]) as f32;
            let (_, _, rows, columns) = latents.size4().unwrap();
            let grid = [rows, columns].map(|side| side.div_euclid(2));
            let canvas = dit
                .canvas(case.height.into(), case.width.into(), grid)
                .unwrap();
            let forwards = [
                ("cond", "glyph", Prior::Shown),
                ("uncond", "negative", Prior::Hidden),
            ];
            for (forward, glyphs, prior) in forwards {
                let expected =
                    |stage: &str| golden.get(&format!("denoise.step0.{forward}.{stage}"));
                let glyphs = golden.get(&format!("{glyphs}.prompt_embeds"));
                let conditioning = dit
                    .condition(glyphs, golden.get("ar.prior_token_ids"), prior)
                    .unwrap();

                let time = dit.time.forward(timestep, &canvas.size).unwrap();
                let entered = dit.enter(latents, &conditioning).unwrap();
                let streams = dit.blocks[0]
                    .forward(&entered, &time, &canvas.rope)
                    .unwrap();
                let velocity = dit
                    .velocity(latents, timestep, &canvas, &conditioning)
                    .unwrap();

                let what = |stage: &str| format!("{name} {forward} {stage}");
                let blocks = [
                    ("block0_image", &streams.image),
                    ("block0_text", &streams.text),
                ];
                for (stage, found) in blocks.into_iter().chain([("output", &velocity)]) {
                    assert_close(&what(stage), found, expected(stage), LATENTS_ATOL);
                }
            }
        }
    }
}
