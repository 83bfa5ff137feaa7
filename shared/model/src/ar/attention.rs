//! One layer: attention over the row's own cache, then the gated MLP, each with a norm before and
//! one after.

use tch::Tensor;

use crate::ar::cache::RowCache;
use crate::ar::config::TextConfig;
use crate::ar::linear::{Bias, Linear, RmsNorm};
use crate::ar::rope::Turn;
use crate::error::Result;
use crate::weights::Scope;

#[derive(Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    out: Linear,
    heads: i64,
    groups: i64,
    head_dim: i64,
}

impl Attention {
    fn load(mut scope: Scope<'_>, config: &TextConfig) -> Result<Self> {
        let (heads, groups) = (config.num_attention_heads, config.num_key_value_heads);
        let (head_dim, width) = (config.head_dim(), config.hidden_size);
        let bias = Bias::from(config.attention_bias);
        Ok(Self {
            query: Linear::load(&mut scope.scope("q_proj"), heads * head_dim, width, bias)?,
            key: Linear::load(&mut scope.scope("k_proj"), groups * head_dim, width, bias)?,
            value: Linear::load(&mut scope.scope("v_proj"), groups * head_dim, width, bias)?,
            out: Linear::load(
                &mut scope.scope("o_proj"),
                width,
                heads * head_dim,
                Bias::None,
            )?,
            heads,
            groups,
            head_dim,
        })
    }

    fn forward(&self, x: &Tensor, layer: usize, step: &mut Step<'_>) -> Result<Tensor> {
        let (rows, tokens, _) = x.size3()?;
        let split = |linear: &Linear, heads: i64| -> Result<Tensor> {
            // (rows, heads, tokens, head dim), strided as the reference strides it
            let split = linear
                .forward(x)?
                .f_view([rows, tokens, heads, self.head_dim])?;
            Ok(split.f_transpose(1, 2)?)
        };
        let query = step.turn.apply(&split(&self.query, self.heads)?)?;
        let key = step.turn.apply(&split(&self.key, self.groups)?)?;
        let value = split(&self.value, self.groups)?;
        let mut attended = Vec::with_capacity(step.caches.len());
        for (row, cache) in (0..rows).zip(step.caches.iter_mut()) {
            let of_row = |tensor: &Tensor| tensor.f_narrow(0, row, 1);
            let (keys, values) = cache.append(layer, &of_row(&key)?, &of_row(&value)?)?;
            attended.push(Tensor::f_scaled_dot_product_attention(
                &of_row(&query)?,
                &keys,
                &values,
                None::<Tensor>,
                0.0,
                // The prompt comes in one piece; after it a token sees all before it.
                tokens > 1,
                (self.head_dim as f64).powf(-0.5),
                self.heads != self.groups,
            )?);
        }
        // (rows, heads, tokens, head dim) -> (rows, tokens, width)
        let attended = Tensor::f_cat(&attended, 0)?.f_transpose(1, 2)?;
        self.out
            .forward(&attended.f_reshape([rows, tokens, -1])?.f_contiguous()?)
    }
}

#[derive(Debug)]
struct Mlp {
    gate_up: Linear,
    down: Linear,
}

impl Mlp {
    fn load(mut scope: Scope<'_>, config: &TextConfig) -> Result<Self> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        Ok(Self {
            gate_up: Linear::load(
                &mut scope.scope("gate_up_proj"),
                2 * inner,
                width,
                Bias::None,
            )?,
            down: Linear::load(&mut scope.scope("down_proj"), width, inner, Bias::None)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        // gate first, then up
        let both = self.gate_up.forward(x)?.f_chunk(2, -1)?;
        self.down.forward(&both[1].f_mul(&both[0].f_silu()?)?)
    }
}

/// What one forward pass works on besides the hidden states.
#[derive(Debug)]
pub(crate) struct Step<'a> {
    pub(crate) turn: &'a Turn,
    /// One a row, in the order of the rows.
    pub(crate) caches: &'a mut [RowCache],
}

/// One of the model's layers.
#[derive(Debug)]
pub(crate) struct Layer {
    attention: Attention,
    mlp: Mlp,
    before_attention: RmsNorm,
    after_attention: RmsNorm,
    before_mlp: RmsNorm,
    after_mlp: RmsNorm,
}

impl Layer {
    pub(crate) fn load(mut scope: Scope<'_>, config: &TextConfig) -> Result<Self> {
        let mut norm = |name: &str| {
            RmsNorm::load(
                &mut scope.scope(name),
                config.hidden_size,
                config.rms_norm_eps,
            )
        };
        Ok(Self {
            before_attention: norm("input_layernorm")?,
            after_attention: norm("post_self_attn_layernorm")?,
            before_mlp: norm("post_attention_layernorm")?,
            after_mlp: norm("post_mlp_layernorm")?,
            attention: Attention::load(scope.scope("self_attn"), config)?,
            mlp: Mlp::load(scope.scope("mlp"), config)?,
        })
    }

    /// (rows, tokens, width), the layer's number for the caches.
    pub(crate) fn forward(&self, x: &Tensor, layer: usize, step: &mut Step<'_>) -> Result<Tensor> {
        let attended = self
            .attention
            .forward(&self.before_attention.forward(x)?, layer, step)?;
        let x = x.f_add(&self.after_attention.forward(&attended)?)?;
        let moved = self.mlp.forward(&self.before_mlp.forward(&x)?)?;
        Ok(x.f_add(&self.after_mlp.forward(&moved)?)?)
    }
}
