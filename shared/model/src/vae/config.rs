//! The VAE's sizes, from `vae/config.json`.

use std::path::Path;

use serde::Deserialize;

use crate::config::read_part_config;
use crate::error::{ModelError, Result};

/// Sizes of the VAE. `scaling_factor` and `shift_factor` are in the file but not used by this model: latents are
/// normalised by channel.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct VaeConfig {
    in_channels: i64,
    out_channels: i64,
    down_block_types: Vec<String>,
    up_block_types: Vec<String>,
    /// Widths from the picture to the latents; the decoder goes through them backwards.
    pub(super) block_out_channels: Vec<i64>,
    pub(super) layers_per_block: usize,
    pub(crate) latent_channels: i64,
    pub(super) norm_num_groups: i64,
    pub(super) latents_mean: Vec<f32>,
    pub(super) latents_std: Vec<f32>,
    act_fn: String,
    // Absent means true to diffusers' class.
    #[serde(default = "yes")]
    mid_block_add_attention: bool,
    #[serde(default = "yes")]
    use_quant_conv: bool,
    #[serde(default = "yes")]
    use_post_quant_conv: bool,
}

fn yes() -> bool {
    true
}

/// Channels of a picture.
pub(super) const RGB: i64 = 3;

impl VaeConfig {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let config: Self = read_part_config(path, "_class_name", "AutoencoderKL")?;
        config.check_kind(path)?;
        config.check_sizes(path)?;
        Ok(config)
    }

    /// Pixels on a side of a latent pixel.
    pub(crate) fn scale(&self) -> i64 {
        // Each block but the last doubles. `check_sizes` bounds the number of blocks.
        1 << (self.block_out_channels.len() - 1)
    }

    fn check_kind(&self, path: &Path) -> Result<()> {
        let kinds = [
            (
                "down_block_types",
                &self.down_block_types,
                "DownEncoderBlock2D",
            ),
            ("up_block_types", &self.up_block_types, "UpDecoderBlock2D"),
        ];
        for (key, kinds, expected) in kinds {
            if let Some(other) = kinds.iter().find(|kind| *kind != expected) {
                let problem = format!("holds {other}, need {expected} only");
                return Err(ModelError::config(path, key, problem));
            }
        }
        if self.act_fn != "silu" {
            return Err(ModelError::config(
                path,
                "act_fn",
                format!("is {}, need silu", self.act_fn),
            ));
        }
        let flags = [
            ("mid_block_add_attention", self.mid_block_add_attention),
            ("use_quant_conv", self.use_quant_conv),
            ("use_post_quant_conv", self.use_post_quant_conv),
        ];
        match flags.into_iter().find(|(_, set)| *set) {
            Some((key, _)) => Err(ModelError::config(path, key, "is true, need false")),
            None => Ok(()),
        }
    }

    fn check_sizes(&self, path: &Path) -> Result<()> {
        let refuse = |key: &str, problem: String| Err(ModelError::config(path, key, problem));
        for (key, channels) in [
            ("in_channels", self.in_channels),
            ("out_channels", self.out_channels),
        ] {
            if channels != RGB {
                return refuse(key, format!("is {channels}, need {RGB}"));
            }
        }
        if self.norm_num_groups <= 0 {
            return refuse(
                "norm_num_groups",
                format!("is {}, need 1 or more", self.norm_num_groups),
            );
        }
        let groups = self.norm_num_groups;
        let divides = |width: &i64| *width > 0 && width.rem_euclid(groups) == 0;
        let blocks = self.block_out_channels.len();
        if !(1..=8).contains(&blocks) || !self.block_out_channels.iter().all(divides) {
            let found = &self.block_out_channels;
            return refuse(
                "block_out_channels",
                format!("is {found:?}, need 1 to 8 multiples of {groups}"),
            );
        }
        let lists = [
            (
                "down_block_types",
                self.down_block_types.len(),
                blocks as i64,
            ),
            ("up_block_types", self.up_block_types.len(), blocks as i64),
            (
                "latents_mean",
                self.latents_mean.len(),
                self.latent_channels,
            ),
            ("latents_std", self.latents_std.len(), self.latent_channels),
        ];
        match lists
            .into_iter()
            .find(|(_, found, expected)| *found as i64 != *expected)
        {
            Some((key, found, expected)) => {
                refuse(key, format!("has {found} entries, need {expected}"))
            }
            None => Ok(()),
        }
    }
}
