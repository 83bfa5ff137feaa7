//! Rotary positions on three axes (time, row, column): where each token stands, and the cosines
//! and sines of it. The positions are pure numbers; only [`Rotary`] touches tensors.

use tch::{Device, Kind, Tensor};

use crate::ar::config::RopeConfig;
use crate::ar::grid::TargetGrids;
use crate::error::Result;

/// Positions of a run of tokens, one list an axis, equally long.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Positions {
    pub(crate) t: Vec<i64>,
    pub(crate) h: Vec<i64>,
    pub(crate) w: Vec<i64>,
}

impl Positions {
    fn push(&mut self, t: i64, h: i64, w: i64) {
        self.t.push(t);
        self.h.push(h);
        self.w.push(w);
    }
}

/// Text counts up, on all axes alike.
pub(crate) fn prefill_positions(tokens: usize) -> Positions {
    let ramp: Vec<i64> = (0..tokens as i64).collect();
    Positions {
        t: ramp.clone(),
        h: ramp.clone(),
        w: ramp,
    }
}

/// Positions of the generated tokens after a prompt of `start` tokens: preview, large grid, end.
/// A grid stands still in time and spreads over rows and columns; the next begins after its
/// longer side.
pub(crate) fn decode_positions(start: usize, grids: TargetGrids) -> Positions {
    let mut positions = Positions::default();
    let mut next = start as i64;
    for grid in [grids.preview, grids.large] {
        for row in 0..i64::from(grid.h) {
            for column in 0..i64::from(grid.w) {
                positions.push(next, next + row, next + column);
            }
        }
        next += i64::from(grid.h.max(grid.w));
    }
    positions.push(next, next, next);
    positions
}

/// Cosines and sines for positions.
#[derive(Debug, Clone)]
pub(crate) struct Rotary {
    config: RopeConfig,
    dim: i64,
}

/// The pair that turns queries and keys, each (rows, tokens, rotated dim).
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) cos: Tensor,
    pub(crate) sin: Tensor,
}

impl Rotary {
    pub(crate) fn new(config: RopeConfig, dim: i64) -> Self {
        Self { config, dim }
    }

    /// For one row: (1, tokens, dim), on the device and in the dtype of the model. Computed on the
    /// CPU in f32, as the reference does, whatever the device.
    pub(crate) fn turn(&self, positions: &Positions, dtype: Kind, device: Device) -> Result<Turn> {
        let cpu = (Kind::Float, Device::Cpu);
        let exponents = Tensor::f_arange_start_step(0, self.dim, 2, cpu)?.f_div_scalar(self.dim)?;
        let frequencies =
            Tensor::f_pow_scalar(self.config.rope_theta, &exponents)?.f_reciprocal()?;
        let axes = [&positions.t, &positions.h, &positions.w];
        let angles = axes
            .iter()
            .map(|axis| {
                // (1, tokens, 1) * (dim / 2) -> (1, tokens, dim / 2)
                let axis = Tensor::f_from_slice(axis)?
                    .f_view([1, -1, 1])?
                    .f_to_kind(Kind::Float)?;
                axis.f_mul(&frequencies)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let compose = |f: fn(&Tensor) -> Result<Tensor, tch::TchError>| -> Result<Tensor> {
            let mut pieces = Vec::new();
            let mut start = 0;
            for (i, width) in self.config.mrope_section.iter().enumerate() {
                // Sections take turns over the axes.
                pieces.push(f(&angles[i % axes.len()])?.f_narrow(-1, start, *width)?);
                start += width;
            }
            let half = Tensor::f_cat(&pieces, -1)?;
            let full = Tensor::f_cat(&[&half, &half], -1)?;
            Ok(full.f_to_kind(dtype)?.f_to_device(device)?)
        };
        Ok(Turn {
            cos: compose(Tensor::f_cos)?,
            sin: compose(Tensor::f_sin)?,
        })
    }
}

impl Turn {
    /// Rows of equal length one below the other.
    pub(crate) fn stack(turns: &[Self]) -> Result<Self> {
        let cos: Vec<_> = turns.iter().map(|turn| &turn.cos).collect();
        let sin: Vec<_> = turns.iter().map(|turn| &turn.sin).collect();
        Ok(Self {
            cos: Tensor::f_cat(&cos, 0)?,
            sin: Tensor::f_cat(&sin, 0)?,
        })
    }

    /// One token of every row: (rows, 1, dim).
    pub(crate) fn at(&self, token: i64) -> Result<Self> {
        Ok(Self {
            cos: self.cos.f_narrow(1, token, 1)?,
            sin: self.sin.f_narrow(1, token, 1)?,
        })
    }

    /// Turns the first dims of each head, (rows, heads, tokens, head dim); the rest passes.
    pub(crate) fn apply(&self, x: &Tensor) -> Result<Tensor> {
        let (cos, sin) = (self.cos.f_unsqueeze(1)?, self.sin.f_unsqueeze(1)?);
        let rotated = *cos.size().last().unwrap_or(&0);
        let head_dim = *x.size().last().unwrap_or(&0);
        let turned = x.f_narrow(-1, 0, rotated)?;
        let passed = x.f_narrow(-1, rotated, head_dim - rotated)?;
        let halves = turned.f_chunk(2, -1)?;
        let crossed = Tensor::f_cat(&[&halves[1].f_neg()?, &halves[0]], -1)?;
        let turned = turned.f_mul(&cos)?.f_add(&crossed.f_mul(&sin)?)?;
        Ok(Tensor::f_cat(&[turned, passed], -1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ar::grid::ImageSize;

    #[test]
    fn a_square_picture_spaces_its_grids_by_their_sides() {
        let grids = TargetGrids::of(ImageSize {
            height: 1024,
            width: 1024,
        })
        .expect("a size");
        let positions = decode_positions(100, grids);
        assert_eq!(positions.t.len(), 256 + 1024 + 1);
        let at = |i: usize| (positions.t[i], positions.h[i], positions.w[i]);
        assert_eq!(at(0), (100, 100, 100));
        assert_eq!(at(17), (100, 101, 101));
        assert_eq!(at(256), (116, 116, 116));
        assert_eq!(at(256 + 33), (116, 117, 117));
        assert_eq!(at(1280), (148, 148, 148));
    }
}
