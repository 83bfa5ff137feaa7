//! Keys and values of one row of a batch, of its own length.
//!
//! Each row has its own cache rather than a place in a padded one: padding needs a mask, a mask
//! takes another attention kernel, and then a row's numbers would depend on its neighbours.

use tch::{Device, Kind, Tensor};

use crate::error::Result;

/// What a cache must hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CacheShape {
    pub(crate) layers: usize,
    pub(crate) heads: i64,
    /// Tokens of prompt and answer together; known before the first token is drawn.
    pub(crate) tokens: i64,
    pub(crate) head_dim: i64,
}

/// The cache of one row.
#[derive(Debug)]
pub(crate) struct RowCache {
    /// Keys and values, each (1, heads, tokens, head dim).
    layers: Vec<(Tensor, Tensor)>,
    len: i64,
}

impl RowCache {
    pub(crate) fn new(shape: CacheShape, dtype: Kind, device: Device) -> Result<Self> {
        let size = [1, shape.heads, shape.tokens, shape.head_dim];
        let empty = || Tensor::f_empty(size, (dtype, device));
        let layers = (0..shape.layers)
            .map(|_| Ok((empty()?, empty()?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self { layers, len: 0 })
    }

    /// Writes new tokens behind the others; returns all keys and values of the layer. The length
    /// moves on when every layer has written: [`RowCache::advance`].
    pub(crate) fn append(
        &mut self,
        layer: usize,
        key: &Tensor,
        value: &Tensor,
    ) -> Result<(Tensor, Tensor)> {
        let tokens = key.size()[2];
        let (keys, values) = &self.layers[layer];
        keys.f_narrow(2, self.len, tokens)?.f_copy_(key)?;
        values.f_narrow(2, self.len, tokens)?.f_copy_(value)?;
        let all = self.len + tokens;
        Ok((keys.f_narrow(2, 0, all)?, values.f_narrow(2, 0, all)?))
    }

    pub(crate) fn advance(&mut self, tokens: i64) {
        self.len += tokens;
    }

    /// A cache of the same contents that goes its own way from here.
    pub(crate) fn fork(&self) -> Result<Self> {
        let copy = |tensor: &Tensor| -> Result<Tensor> {
            let mut out = tensor.f_empty_like()?;
            out.f_copy_(tensor)?;
            Ok(out)
        };
        let layers = self
            .layers
            .iter()
            .map(|(keys, values)| Ok((copy(keys)?, copy(values)?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self {
            layers,
            len: self.len,
        })
    }
}
