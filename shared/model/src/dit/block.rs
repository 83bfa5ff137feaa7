//! One block of the DiT: text and image tokens attend jointly; both streams share all weights but the modulation.

use tch::Tensor;

use crate::error::Result;
use crate::layers::Linear;
use crate::weights::Scope;

use super::config::DitConfig;
use super::embed::{Activation, Projector, Widths};
use super::rope::Rope;

/// Of every LayerNorm in the DiT; diffusers writes it in the code, not in the config.
const EPSILON: f64 = 1e-5;

/// A block's weights.
#[derive(Debug)]
pub(super) struct Block {
    modulation: Linear,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    feed_forward: Projector,
    heads: i64,
    head_dim: i64,
}

/// The two token streams.
#[derive(Debug)]
pub(super) struct Streams {
    /// (1, patches, width)
    pub(super) image: Tensor,
    /// (1, glyph tokens, width)
    pub(super) text: Tensor,
}

impl Block {
    pub(super) fn load(mut weights: Scope<'_>, config: &DitConfig) -> Result<Self> {
        let width = config.width();
        let modulation = Linear::load(
            weights.scope("norm1.linear"),
            config.time_embed_dim,
            12 * width,
        )?;
        let mut attention = weights.scope("attn1");
        let mut square = |name: &str| Linear::load(attention.scope(name), width, width);
        let (query, key) = (square("to_q")?, square("to_k")?);
        let (value, output) = (square("to_v")?, square("to_out.0")?);
        let widths = Widths {
            input: width,
            inner: 4 * width,
            output: width,
        };
        let feed_forward = Projector::load(weights.scope("ff"), widths, Activation::GeluTanh)?;
        let (heads, head_dim) = (config.num_attention_heads, config.attention_head_dim);
        Ok(Self {
            modulation,
            query,
            key,
            value,
            output,
            feed_forward,
            heads,
            head_dim,
        })
    }

    /// `time` is (1, time_dim).
    pub(super) fn forward(&self, streams: &Streams, time: &Tensor, rope: &Rope) -> Result<Streams> {
        let Streams { image, text } = streams;
        let m = Modulation::new(&self.modulation.forward(time)?)?;

        let (image_update, text_update) = self.attend(
            &modulated(image, &m.image.attention)?,
            &modulated(text, &m.text.attention)?,
            rope,
        )?;
        let image = gated(image, &image_update, &m.image.attention)?;
        let text = gated(text, &text_update, &m.text.attention)?;

        let image_update = self
            .feed_forward
            .forward(&modulated(&image, &m.image.feed_forward)?)?;
        let text_update = self
            .feed_forward
            .forward(&modulated(&text, &m.text.feed_forward)?)?;
        Ok(Streams {
            image: gated(&image, &image_update, &m.image.feed_forward)?,
            text: gated(&text, &text_update, &m.text.feed_forward)?,
        })
    }

    /// Joint attention over `[text; image]`; returns the updates of image and text.
    fn attend(&self, image: &Tensor, text: &Tensor, rope: &Rope) -> Result<(Tensor, Tensor)> {
        let text_len = text.size3()?.1;
        let joint = Tensor::f_cat(&[text, image], 1)?; // (1, tokens, width)
        let image_len = joint.size3()?.1 - text_len;
        let split = |x: Tensor| x.f_unflatten(2, [self.heads, self.head_dim]); // (1, tokens, heads, head_dim)

        let query = self.turned(&split(self.query.forward(&joint)?)?, text_len, rope)?;
        let key = self.turned(&split(self.key.forward(&joint)?)?, text_len, rope)?;
        let value = split(self.value.forward(&joint)?)?;

        // The kernel wants (1, heads, tokens, head_dim): permuted views, as in the reference, no copies.
        let by_head = |x: &Tensor| x.f_permute([0, 2, 1, 3]);
        let attended = Tensor::f_scaled_dot_product_attention(
            &by_head(&query)?,
            &by_head(&key)?,
            &by_head(&value)?,
            None::<&Tensor>,
            0.0,
            false,
            None,
            false,
        )?;
        let attended = self
            .output
            .forward(&attended.f_permute([0, 2, 1, 3])?.f_flatten(2, 3)?)?;
        let image = attended.f_narrow(1, text_len, image_len)?;
        let text = attended.f_narrow(1, 0, text_len)?;
        Ok((image, text))
    }

    /// Normalises queries or keys over the head and turns the image part by its position.
    fn turned(&self, x: &Tensor, text_len: i64, rope: &Rope) -> Result<Tensor> {
        let x = layer_norm(x, self.head_dim)?;
        let image_len = x.size4()?.1 - text_len;
        // A view of `x`, which the norm has just made: written in place as in the reference.
        let mut image = x.f_narrow(1, text_len, image_len)?;
        let turned = rope.turn(&image)?;
        image.f_copy_(&turned)?;
        Ok(x)
    }
}

/// LayerNorm over the last dimension without weights.
pub(super) fn layer_norm(x: &Tensor, width: i64) -> Result<Tensor> {
    Ok(x.f_layer_norm([width], None::<&Tensor>, None::<&Tensor>, EPSILON, true)?)
}

/// Shift, scale and gate of one half of a block: each (1, 1, width).
struct Affine {
    shift: Tensor,
    scale: Tensor,
    gate: Tensor,
}

struct StreamModulation {
    attention: Affine,
    feed_forward: Affine,
}

struct Modulation {
    image: StreamModulation,
    text: StreamModulation,
}

impl Modulation {
    /// `table` (1, 12 width) holds, in this order and each for image then text: shift, scale and gate of the
    /// attention, shift, scale and gate of the feed-forward.
    fn new(table: &Tensor) -> Result<Self> {
        let parts = table.f_unsqueeze(1)?.f_chunk(12, -1)?;
        let part = |index: usize| parts[index].shallow_clone();
        let stream = |offset: usize| StreamModulation {
            attention: Affine {
                shift: part(offset),
                scale: part(2 + offset),
                gate: part(4 + offset),
            },
            feed_forward: Affine {
                shift: part(6 + offset),
                scale: part(8 + offset),
                gate: part(10 + offset),
            },
        };
        Ok(Self {
            image: stream(0),
            text: stream(1),
        })
    }
}

fn modulated(x: &Tensor, affine: &Affine) -> Result<Tensor> {
    let width = x.size3()?.2;
    Ok(layer_norm(x, width)?
        .f_mul(&affine.scale.f_add_scalar(1)?)?
        .f_add(&affine.shift)?)
}

fn gated(x: &Tensor, update: &Tensor, affine: &Affine) -> Result<Tensor> {
    Ok(x.f_add(&update.f_mul(&affine.gate)?)?)
}
