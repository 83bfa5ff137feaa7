//! The encoder half of T5 v1.1 (gated GELU, relative position bias, no biases, no scaling of scores).

use std::path::Path;

use serde::Deserialize;
use tch::{Device, Kind, Tensor};

use crate::config::read_part_config;
use crate::error::{ModelError, Result};
use crate::layers::Linear;
use crate::weights::{LoadOptions, PartReport, Scope, Weights};

/// `text_encoder/config.json`, the values that shape the computation.
#[derive(Clone, Debug, Deserialize)]
struct T5Config {
    d_model: i64,
    d_ff: i64,
    d_kv: i64,
    num_heads: i64,
    num_layers: usize,
    vocab_size: i64,
    feed_forward_proj: String,
    dense_act_fn: String,
    layer_norm_epsilon: f64,
    relative_attention_num_buckets: u32,
    relative_attention_max_distance: u32,
}

impl T5Config {
    fn read(path: &Path) -> Result<Self> {
        let config: Self = read_part_config(path, "model_type", "t5")?;
        let refuse = |key: &str, value: &str, need: &str| {
            Err(ModelError::config(
                path,
                key,
                format!("is {value}, need {need}"),
            ))
        };
        if config.feed_forward_proj != "gated-gelu" {
            return refuse("feed_forward_proj", &config.feed_forward_proj, "gated-gelu");
        }
        if config.dense_act_fn != "gelu_new" {
            return refuse("dense_act_fn", &config.dense_act_fn, "gelu_new");
        }
        let buckets = config.relative_attention_num_buckets;
        if buckets == 0 || !buckets.is_multiple_of(4) {
            return refuse(
                "relative_attention_num_buckets",
                &buckets.to_string(),
                "a multiple of 4",
            );
        }
        // Buckets beyond the exact ones are spread over the logarithm of distance / exact.
        let distance = config.relative_attention_max_distance;
        if distance <= buckets.div_euclid(4) {
            let need = format!("more than {}", buckets.div_euclid(4));
            return refuse(
                "relative_attention_max_distance",
                &distance.to_string(),
                &need,
            );
        }
        let sizes = [
            ("d_model", config.d_model),
            ("d_ff", config.d_ff),
            ("d_kv", config.d_kv),
            ("num_heads", config.num_heads),
            ("vocab_size", config.vocab_size),
        ];
        if let Some((key, size)) = sizes.into_iter().find(|(_, size)| *size <= 0) {
            return refuse(key, &size.to_string(), "a positive size");
        }
        Ok(config)
    }
}

/// The encoder. Its cost is nothing beside the DiT's; it runs once for a picture.
#[derive(Debug)]
pub(super) struct T5Encoder {
    config: T5Config,
    device: Device,
    embedding: Tensor,
    /// (buckets, heads); of the first block, used by all.
    position_bias: Tensor,
    blocks: Vec<Block>,
    final_norm: RmsNorm,
}

impl T5Encoder {
    pub(super) fn load(dir: &Path, options: LoadOptions) -> Result<(Self, PartReport)> {
        let config = T5Config::read(&dir.join("config.json"))?;
        let mut weights = Weights::open(dir, "model", options)?;
        // The file holds the embedding under this name only; `encoder.embed_tokens` is tied to it.
        let embedding = weights.tensor("shared.weight", &[config.vocab_size, config.d_model])?;
        let bias_size = [
            i64::from(config.relative_attention_num_buckets),
            config.num_heads,
        ];
        let bias_key = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight";
        let position_bias = weights.tensor(bias_key, &bias_size)?;
        let blocks = (0..config.num_layers)
            .map(|index| {
                Block::load(
                    weights.scope(&format!("encoder.block.{index}.layer")),
                    &config,
                )
            })
            .collect::<Result<_>>()?;
        let final_norm = RmsNorm::load(weights.scope("encoder.final_layer_norm"), &config)?;
        let report = weights.finish()?;
        let device = options.device;
        Ok((
            Self {
                config,
                device,
                embedding,
                position_bias,
                blocks,
                final_norm,
            },
            report,
        ))
    }

    pub(super) fn vocab_size(&self) -> i64 {
        self.config.vocab_size
    }

    pub(super) fn width(&self) -> i64 {
        self.config.d_model
    }

    pub(super) fn device(&self) -> Device {
        self.device
    }

    /// `ids` (batch, tokens) int64 and `mask` (batch, tokens) bool, false on padding, both on the CPU;
    /// `None` where nothing is padded. Returns (batch, tokens, d_model).
    pub(super) fn forward(&self, ids: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
        let (_, tokens) = ids.size2()?;
        let bias = self.bias(tokens, mask)?;
        let ids = ids.f_to_device(self.device)?;
        let mut x = Tensor::f_embedding(&self.embedding, &ids, -1, false, false)?;
        for block in &self.blocks {
            x = block.forward(&x, &bias, &self.config)?;
        }
        self.final_norm.forward(&x)
    }

    /// What is added to the scores: (1 or batch, heads, tokens, tokens).
    fn bias(&self, tokens: i64, mask: Option<&Tensor>) -> Result<Tensor> {
        let buckets = self.buckets(tokens)?.f_to_device(self.device)?;
        let bias = Tensor::f_embedding(&self.position_bias, &buckets, -1, false, false)?
            .f_permute([2, 0, 1])?
            .f_unsqueeze(0)?;
        let Some(mask) = mask else {
            return Ok(bias.f_contiguous()?);
        };
        // The bias is replaced by the dtype's least value, not lowered by it, and not minus infinity: a row of
        // padding only would become NaN.
        let least =
            bias.f_new_full([1], least_of(bias.f_kind()?), (bias.f_kind()?, self.device))?;
        let mask = mask
            .f_to_device(self.device)?
            .f_unsqueeze(1)?
            .f_unsqueeze(1)?; // (batch, 1, 1, tokens)
        Ok(bias.f_where_self(&mask, &least)?.f_contiguous()?)
    }

    /// (tokens, tokens): bucket of each key as seen from each query. Computed by tensor operations, because the
    /// logarithm of another library could put a distance into the next bucket.
    fn buckets(&self, tokens: i64) -> Result<Tensor> {
        let one_side = i64::from(self.config.relative_attention_num_buckets.div_euclid(2));
        let exact = one_side.div_euclid(2);
        let log_range =
            (f64::from(self.config.relative_attention_max_distance) / exact as f64).ln();

        let positions = Tensor::f_arange(tokens, (Kind::Int64, Device::Cpu))?;
        let offset = positions
            .f_unsqueeze(0)?
            .f_sub(&positions.f_unsqueeze(1)?)?;
        let after = offset
            .f_gt(0)?
            .f_to_kind(Kind::Int64)?
            .f_mul_scalar(one_side)?;
        let distance = offset.f_abs()?;
        let far = distance
            .f_to_kind(Kind::Float)?
            .f_div_scalar(exact)?
            .f_log()?
            .f_div_scalar(log_range)?
            .f_mul_scalar(one_side - exact)?
            .f_to_kind(Kind::Int64)?
            .f_add_scalar(exact)?
            .f_clamp_max(one_side - 1)?;
        let bucket = distance.f_where_self(&distance.f_lt(exact)?, &far)?;
        Ok(after.f_add(&bucket)?)
    }
}

fn least_of(kind: Kind) -> f64 {
    match kind {
        Kind::BFloat16 => -3.389_531_389_251_535_5e38,
        Kind::Half => -65504.0,
        _ => f64::from(f32::MIN),
    }
}

#[derive(Debug)]
struct Block {
    attention_norm: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    feed_forward_norm: RmsNorm,
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Block {
    fn load(mut weights: Scope<'_>, config: &T5Config) -> Result<Self> {
        let (width, inner) = (config.d_model, config.num_heads * config.d_kv);
        let mut attention = weights.scope("0.SelfAttention");
        let query = Linear::load_without_bias(attention.scope("q"), width, inner)?;
        let key = Linear::load_without_bias(attention.scope("k"), width, inner)?;
        let value = Linear::load_without_bias(attention.scope("v"), width, inner)?;
        let output = Linear::load_without_bias(attention.scope("o"), inner, width)?;
        let mut dense = weights.scope("1.DenseReluDense");
        let gate = Linear::load_without_bias(dense.scope("wi_0"), width, config.d_ff)?;
        let up = Linear::load_without_bias(dense.scope("wi_1"), width, config.d_ff)?;
        let down = Linear::load_without_bias(dense.scope("wo"), config.d_ff, width)?;
        let attention_norm = RmsNorm::load(weights.scope("0.layer_norm"), config)?;
        let feed_forward_norm = RmsNorm::load(weights.scope("1.layer_norm"), config)?;
        Ok(Self {
            attention_norm,
            query,
            key,
            value,
            output,
            feed_forward_norm,
            gate,
            up,
            down,
        })
    }

    /// (batch, tokens, d_model) → the same
    fn forward(&self, x: &Tensor, bias: &Tensor, config: &T5Config) -> Result<Tensor> {
        let attended = self.attend(&self.attention_norm.forward(x)?, bias, config)?;
        let x = x.f_add(&attended)?;
        let y = self.feed_forward_norm.forward(&x)?;
        let gated = gelu_new(&self.gate.forward(&y)?)?.f_mul(&self.up.forward(&y)?)?;
        Ok(x.f_add(&self.down.forward(&gated)?)?)
    }

    fn attend(&self, x: &Tensor, bias: &Tensor, config: &T5Config) -> Result<Tensor> {
        let (batch, tokens, _) = x.size3()?;
        // (batch, tokens, heads * d_kv) → (batch, heads, tokens, d_kv), not made contiguous
        let heads = |x: Tensor| -> Result<Tensor> {
            Ok(x.f_view([batch, tokens, config.num_heads, config.d_kv])?
                .f_transpose(1, 2)?)
        };
        let attended = Tensor::f_scaled_dot_product_attention(
            &heads(self.query.forward(x)?)?,
            &heads(self.key.forward(x)?)?,
            &heads(self.value.forward(x)?)?,
            Some(bias),
            0.0,
            false,
            1.0,
            false,
        )?;
        let joined = attended
            .f_transpose(1, 2)?
            .f_contiguous()?
            .f_reshape([batch, tokens, -1])?;
        self.output.forward(&joined)
    }
}

/// GELU by tanh as transformers' `NewGELUActivation` spells it; libtorch's fused one rounds differently.
fn gelu_new(x: &Tensor) -> Result<Tensor> {
    let cubic = x.f_pow_tensor_scalar(3.0)?.f_mul_scalar(0.044_715)?;
    let inner = x
        .f_add(&cubic)?
        .f_mul_scalar((2.0 / std::f64::consts::PI).sqrt())?;
    Ok(x.f_mul_scalar(0.5)?
        .f_mul(&inner.f_tanh()?.f_add_scalar(1.0)?)?)
}

/// T5's LayerNorm: scales by the root mean square, in f32 whatever the dtype.
#[derive(Debug)]
struct RmsNorm {
    weight: Tensor,
    epsilon: f64,
}

impl RmsNorm {
    fn load(mut weights: Scope<'_>, config: &T5Config) -> Result<Self> {
        let weight = weights.tensor("weight", &[config.d_model])?;
        Ok(Self {
            weight,
            epsilon: config.layer_norm_epsilon,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let variance = x
            .f_to_kind(Kind::Float)?
            .f_pow_tensor_scalar(2)?
            .f_mean_dim([-1i64].as_slice(), true, Kind::Float)?;
        let scale = variance.f_add_scalar(self.epsilon)?.f_rsqrt()?;
        let normed = x.f_mul(&scale)?.f_to_kind(self.weight.f_kind()?)?;
        Ok(self.weight.f_mul(&normed)?)
    }
}
