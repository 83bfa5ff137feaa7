//! The DiT's sizes, from `transformer/config.json`.

use std::path::Path;

use serde::Deserialize;

use crate::config::read_part_config;
use crate::error::{ModelError, Result};

/// Sizes of the DiT. All come from the file: the defaults of diffusers' class are not the published values.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct DitConfig {
    /// Latent pixels on a side of a patch.
    pub(crate) patch_size: i64,
    pub(crate) in_channels: i64,
    pub(crate) out_channels: i64,
    pub(crate) num_layers: usize,
    pub(crate) attention_head_dim: i64,
    pub(crate) num_attention_heads: i64,
    /// Width of a glyph embedding.
    pub(crate) text_embed_dim: i64,
    pub(crate) time_embed_dim: i64,
    /// Width of the sinusoid of one number of the size condition.
    pub(crate) condition_dim: i64,
    #[serde(rename = "prior_vq_quantizer_codebook_size")]
    pub(crate) codebook_size: i64,
}

/// Far above any model, far below where products of two sizes overflow.
const SIZE_MAX: i64 = 1 << 20;

impl DitConfig {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let config: Self = read_part_config(path, "_class_name", "GlmImageTransformer2DModel")?;
        let refuse = |key: &str, value: i64, need: &str| {
            Err(ModelError::config(
                path,
                key,
                format!("is {value}, need {need}"),
            ))
        };
        let sizes = [
            ("patch_size", config.patch_size, 1),
            ("in_channels", config.in_channels, 1),
            ("num_attention_heads", config.num_attention_heads, 1),
            ("text_embed_dim", config.text_embed_dim, 1),
            ("prior_vq_quantizer_codebook_size", config.codebook_size, 1),
            // Rows and columns each take half of a head, as pairs; a sinusoid is half cosines, half sines.
            ("attention_head_dim", config.attention_head_dim, 4),
            ("time_embed_dim", config.time_embed_dim, 2),
            ("condition_dim", config.condition_dim, 2),
        ];
        for (key, size, multiple) in sizes {
            if size <= 0 || size > SIZE_MAX || size.rem_euclid(multiple) != 0 {
                let need = format!("a positive multiple of {multiple} up to {SIZE_MAX}");
                return refuse(key, size, &need);
            }
        }
        if config.out_channels != config.in_channels {
            let need = format!("{} like in_channels", config.in_channels);
            return refuse("out_channels", config.out_channels, &need);
        }
        Ok(config)
    }

    /// Width of a token in the blocks.
    pub(crate) fn width(&self) -> i64 {
        self.num_attention_heads * self.attention_head_dim
    }

    /// Numbers in one patch of latents.
    pub(crate) fn patch_numbers(&self) -> i64 {
        self.in_channels * self.patch_size * self.patch_size
    }
}
