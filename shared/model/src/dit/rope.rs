//! Two-dimensional rotary positions: half of each head turns with the patch's row, half with its column.

use tch::{Device, Kind, Tensor};

use crate::error::Result;

const THETA: f64 = 10_000.0;

/// Cosines and sines for every patch of one picture size. f32 whatever the dtype of the weights.
#[derive(Debug)]
pub(super) struct Rope {
    /// (1, patches, 1, head_dim)
    cos: Tensor,
    sin: Tensor,
}

impl Rope {
    /// Tables for `rows` x `columns` patches in row-major order, made on the CPU and moved.
    pub(super) fn new(rows: i64, columns: i64, head_dim: i64, device: Device) -> Result<Self> {
        let axis_dim = head_dim.div_euclid(2);
        let frequencies = Tensor::f_arange_start_step(0, axis_dim, 2, (Kind::Float, Device::Cpu))?
            .f_div_scalar(axis_dim)?;
        let frequencies = Tensor::f_pow_scalar(THETA, &frequencies)?.f_reciprocal()?; // (head_dim / 4)
        let angles = |positions: i64| -> Result<Tensor> {
            Ok(Tensor::f_arange(positions, (Kind::Float, Device::Cpu))?.f_outer(&frequencies)?)
        };
        let size = [rows, columns, -1];
        let by_row = angles(rows)?.f_unsqueeze(1)?.f_expand(size, false)?;
        let by_column = angles(columns)?.f_unsqueeze(0)?.f_expand(size, false)?;
        let half = Tensor::f_cat(&[by_row, by_column], -1)?; // (rows, columns, head_dim / 2)
        let angles =
            Tensor::f_cat(&[&half, &half], -1)?.f_reshape([1, rows * columns, 1, head_dim])?;
        let cos = angles.f_cos()?.f_to_device(device)?;
        let sin = angles.f_sin()?.f_to_device(device)?;
        Ok(Self { cos, sin })
    }

    /// Turns `x` (batch, patches, heads, head_dim) in f32 and returns it in its own dtype.
    pub(super) fn turn(&self, x: &Tensor) -> Result<Tensor> {
        let halves = x.f_chunk(2, -1)?;
        let crossed = Tensor::f_cat(&[halves[1].f_neg()?, halves[0].shallow_clone()], -1)?;
        let turned = x.f_to_kind(Kind::Float)?.f_mul(&self.cos)?;
        let turned = turned.f_add(&crossed.f_to_kind(Kind::Float)?.f_mul(&self.sin)?)?;
        Ok(turned.f_to_kind(x.f_kind()?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_patch_is_not_turned_and_rows_and_columns_turn_different_dims() {
        let rope = Rope::new(2, 3, 8, Device::Cpu).unwrap();
        let cos = Vec::<f32>::try_from(rope.cos.f_reshape([-1]).unwrap()).unwrap();

        assert_eq!(cos.len(), 6 * 8);
        let one = 1f32.cos();
        let slow = (1.0f32 / 100.0).cos();
        let table = [
            // Row 0, column 0, then row 0, column 1, then row 1, column 0.
            (0, [1.0; 4]),
            (1, [1.0, 1.0, one, slow]),
            (3, [one, slow, 1.0, 1.0]),
        ];
        for (patch, half) in table {
            let found = &cos[8 * patch..8 * (patch + 1)];
            for (found, expected) in found.iter().zip(half.iter().chain(&half)) {
                assert!(
                    (found - expected).abs() < 1e-6,
                    "patch {patch}: {found} {expected}"
                );
            }
        }
    }
}
