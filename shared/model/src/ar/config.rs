//! `vision_language_encoder/config.json`, checked before anything is built from it.

use std::path::Path;

use serde::Deserialize;

use crate::config::read_part_config;
use crate::error::{ModelError, Result};

/// The whole file. The vision parts are read to check their keys; text-to-image never runs them.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct ArConfig {
    pub(crate) image_start_token_id: i64,
    pub(crate) image_end_token_id: i64,
    pub(crate) image_token_id: i64,
    pub(crate) text_config: TextConfig,
    pub(crate) vision_config: VisionConfig,
    pub(crate) vq_config: VqConfig,
}

/// The language model.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct TextConfig {
    pub(crate) vocab_size: i64,
    pub(crate) vision_vocab_size: i64,
    pub(crate) hidden_size: i64,
    pub(crate) intermediate_size: i64,
    pub(crate) num_hidden_layers: usize,
    pub(crate) num_attention_heads: i64,
    pub(crate) num_key_value_heads: i64,
    /// Absent in the published file: the width shared among the heads.
    pub(crate) head_dim: Option<i64>,
    /// Absent in the published file, where the projections do have biases.
    #[serde(default = "yes")]
    pub(crate) attention_bias: bool,
    pub(crate) hidden_act: String,
    pub(crate) rms_norm_eps: f64,
    pub(crate) max_position_embeddings: usize,
    pub(crate) rope_parameters: RopeConfig,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RopeConfig {
    pub(crate) rope_type: String,
    pub(crate) rope_theta: f64,
    pub(crate) partial_rotary_factor: f64,
    pub(crate) mrope_section: Vec<i64>,
}

/// The picture encoder of edits.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct VisionConfig {
    pub(crate) depth: usize,
    pub(crate) hidden_size: i64,
    pub(crate) intermediate_size: i64,
    pub(crate) image_size: i64,
    pub(crate) patch_size: i64,
    pub(crate) in_channels: i64,
    #[serde(default = "yes")]
    pub(crate) attention_bias: bool,
}

/// The quantizer of edits, whose codebook the prior tokens index.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct VqConfig {
    pub(crate) embed_dim: i64,
    pub(crate) latent_channels: i64,
    pub(crate) num_embeddings: i64,
}

fn yes() -> bool {
    true
}

impl ArConfig {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let config: Self = read_part_config(path, "model_type", "glm_image")?;
        config
            .check()
            .map_err(|(field, problem)| ModelError::config(path, field, problem))?;
        Ok(config)
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let text = &self.text_config;
        text.check()?;
        let codebook = self.vq_config.num_embeddings;
        // Prior tokens travel as u16.
        if !(1..=i64::from(u16::MAX) + 1).contains(&codebook) {
            return Err(("num_embeddings", format!("is {codebook}, need 1 to 65536")));
        }
        for (field, id) in [
            ("image_start_token_id", self.image_start_token_id),
            ("image_end_token_id", self.image_end_token_id),
        ] {
            if !(codebook..text.vision_vocab_size).contains(&id) {
                let range = format!("{codebook} to {}", text.vision_vocab_size);
                return Err((
                    field,
                    format!("is {id}, need {range} (codebook to vision vocabulary)"),
                ));
            }
        }
        let vision = &self.vision_config;
        if vision.patch_size < 1 || vision.image_size < vision.patch_size {
            return Err((
                "patch_size",
                format!("is {}, need 1 to image_size", vision.patch_size),
            ));
        }
        Ok(())
    }
}

impl TextConfig {
    pub(crate) fn head_dim(&self) -> i64 {
        // `check` makes sure that the heads share the width evenly where the field is absent.
        self.head_dim
            .unwrap_or_else(|| self.hidden_size.div_euclid(self.num_attention_heads))
    }

    /// Dims of a head that positions turn.
    pub(crate) fn rotary_dim(&self) -> i64 {
        (self.head_dim() as f64 * self.rope_parameters.partial_rotary_factor) as i64
    }

    fn check(&self) -> Result<(), (&'static str, String)> {
        let need =
            |ok: bool, field, problem: String| if ok { Ok(()) } else { Err((field, problem)) };
        let (heads, groups) = (self.num_attention_heads, self.num_key_value_heads);
        need(heads > 0, "num_attention_heads", format!("is {heads}"))?;
        need(
            groups > 0 && heads % groups == 0,
            "num_key_value_heads",
            format!("is {groups}, need a divisor of the {heads} attention heads"),
        )?;
        need(
            self.head_dim.is_some() || self.hidden_size % heads == 0,
            "hidden_size",
            format!("is {}, no multiple of {heads} heads", self.hidden_size),
        )?;
        need(
            (1..=self.vocab_size).contains(&self.vision_vocab_size),
            "vision_vocab_size",
            format!(
                "is {}, need 1 to vocab_size {}",
                self.vision_vocab_size, self.vocab_size
            ),
        )?;
        need(
            self.hidden_act == "silu",
            "hidden_act",
            format!("is {}, need silu", self.hidden_act),
        )?;
        let rope = &self.rope_parameters;
        need(
            rope.rope_type == "default",
            "rope_type",
            format!("is {}, need default", rope.rope_type),
        )?;
        let (sections, rotary) = (&rope.mrope_section, self.rotary_dim());
        need(
            sections.iter().all(|width| *width > 0)
                && sections.iter().sum::<i64>() * 2 == rotary
                && (1..=self.head_dim()).contains(&rotary),
            "mrope_section",
            format!("is {sections:?}, need half of the {rotary} rotated dims in all"),
        )
    }
}
