//! The language model: ids in, the next id's logits out. One row at a time for prompts (they
//! differ in length), all rows together for each token after them.

use tch::{Device, Kind, Tensor};

use crate::ar::attention::{Layer, Step};
use crate::ar::cache::{CacheShape, RowCache};
use crate::ar::config::{ArConfig, TextConfig, VisionConfig, VqConfig};
use crate::ar::linear::{Bias, Linear, RmsNorm};
use crate::ar::rope::{Positions, Rotary, Turn};
use crate::error::Result;
use crate::weights::{LoadOptions, Scope, Weights};

#[derive(Debug)]
pub(crate) struct LanguageModel {
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: RmsNorm,
    head: Linear,
    rotary: Rotary,
    cache_shape: CacheShape,
    options: LoadOptions,
}

impl LanguageModel {
    /// Takes the language model's weights and checks those that only edits use.
    pub(crate) fn load(config: &ArConfig, weights: &mut Weights) -> Result<Self> {
        let text = &config.text_config;
        let options = weights.options();
        let width = text.hidden_size;
        check_vision(weights.scope("model.visual"), &config.vision_config)?;
        check_quantizer(weights.scope("model.vqmodel"), &config.vq_config)?;
        let head = Linear::load(
            &mut weights.scope("lm_head"),
            text.vision_vocab_size,
            width,
            Bias::None,
        )?;
        let mut scope = weights.scope("model.language_model");
        let embedding = scope.tensor("embed_tokens.weight", &[text.vocab_size, width])?;
        let norm = RmsNorm::load(&mut scope.scope("norm"), width, text.rms_norm_eps)?;
        let layers = load_layers(scope.scope("layers"), text)?;
        let cache_shape = CacheShape {
            layers: text.num_hidden_layers,
            heads: text.num_key_value_heads,
            tokens: 0,
            head_dim: text.head_dim(),
        };
        let rotary = Rotary::new(text.rope_parameters.clone(), text.rotary_dim());
        Ok(Self {
            embedding,
            layers,
            norm,
            head,
            rotary,
            cache_shape,
            options,
        })
    }

    /// An empty cache for so many tokens.
    pub(crate) fn cache(&self, tokens: usize) -> Result<RowCache> {
        let shape = CacheShape {
            tokens: tokens as i64,
            ..self.cache_shape
        };
        RowCache::new(shape, self.options.dtype, self.options.device)
    }

    pub(crate) fn turn(&self, positions: &Positions) -> Result<Turn> {
        self.rotary
            .turn(positions, self.options.dtype, self.options.device)
    }

    /// Reads new tokens of each row, (rows, tokens), into the caches; returns the logits after
    /// each row's last token, (rows, vision vocabulary), f32 on the CPU.
    pub(crate) fn forward(&self, ids: &Tensor, mut step: Step<'_>) -> Result<Tensor> {
        let ids = ids.f_to_device(self.options.device)?;
        let mut x = Tensor::f_embedding(&self.embedding, &ids, -1, false, false)?;
        for (number, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, number, &mut step)?;
        }
        let tokens = x.size()[1];
        for cache in step.caches.iter_mut() {
            cache.advance(tokens);
        }
        let last = self.norm.forward(&x.f_narrow(1, tokens - 1, 1)?)?;
        let logits = self.head.forward(&last)?.f_squeeze_dim(1)?;
        Ok(logits.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?)
    }
}

fn load_layers(mut scope: Scope<'_>, config: &TextConfig) -> Result<Vec<Layer>> {
    (0..config.num_hidden_layers)
        .map(|number| Layer::load(scope.scope(number), config))
        .collect()
}

fn check_vision(mut scope: Scope<'_>, config: &VisionConfig) -> Result<()> {
    let (width, inner, patch) = (
        config.hidden_size,
        config.intermediate_size,
        config.patch_size,
    );
    scope.skip(
        "patch_embed.proj.weight",
        &[width, config.in_channels, patch, patch],
    )?;
    scope.skip("patch_embed.proj.bias", &[width])?;
    let side = config.image_size.div_euclid(patch);
    scope.skip(
        "embeddings.position_embedding.weight",
        &[side * side, width],
    )?;
    for number in 0..config.depth {
        let mut block = scope.scope(format_args!("blocks.{number}"));
        for name in ["norm1", "norm2"] {
            block.skip(&format!("{name}.weight"), &[width])?;
            block.skip(&format!("{name}.bias"), &[width])?;
        }
        for (name, out, input, bias) in [
            ("attn.qkv", 3 * width, width, config.attention_bias),
            ("attn.proj", width, width, config.attention_bias),
            ("mlp.fc1", inner, width, true),
            ("mlp.fc2", width, inner, true),
        ] {
            block.skip(&format!("{name}.weight"), &[out, input])?;
            if bias {
                block.skip(&format!("{name}.bias"), &[out])?;
            }
        }
    }
    Ok(())
}

fn check_quantizer(mut scope: Scope<'_>, config: &VqConfig) -> Result<()> {
    let VqConfig {
        embed_dim,
        latent_channels,
        num_embeddings,
    } = *config;
    scope.skip("quant_conv.weight", &[embed_dim, latent_channels, 1, 1])?;
    scope.skip("quant_conv.bias", &[embed_dim])?;
    scope.skip(
        "post_quant_conv.weight",
        &[latent_channels, embed_dim, 1, 1],
    )?;
    scope.skip("post_quant_conv.bias", &[latent_channels])?;
    scope.skip("quantize.embedding.weight", &[num_embeddings, embed_dim])
}
