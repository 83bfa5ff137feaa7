//! The two building blocks of a layer, so arranged that a row of a batch gets the bits it would
//! get alone.

use tch::{Device, Kind, Tensor};

use crate::error::Result;
use crate::weights::Scope;

/// A projection, (rows, tokens, in) → (rows, tokens, out).
#[derive(Debug)]
pub(super) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
    device: Device,
}

impl Linear {
    pub(super) fn load(scope: &mut Scope<'_>, out: i64, input: i64, bias: Bias) -> Result<Self> {
        let device = scope.options().device;
        let weight = scope.tensor("weight", &[out, input])?;
        let bias = match bias {
            Bias::Has => Some(scope.tensor("bias", &[out])?),
            Bias::None => None,
        };
        Ok(Self {
            weight,
            bias,
            device,
        })
    }

    /// On the CPU every row is a product of its own, in one call. A product over all rows sums in
    /// another order (MKL: up to 3e-6 in f32, for every number of rows another), and one sampled
    /// id that flips on it changes the rest of the picture: the same request would give different
    /// pictures depending on who shared its batch. Measured with 4 rows on 2 cores, 4096 wide:
    /// no slower than the product over all rows. On a device the weights are worth reading once.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let rows = x.size()[0];
        if rows == 1 || self.device != Device::Cpu {
            return Ok(x.f_linear(&self.weight, self.bias.as_ref())?);
        }
        let (out, input) = self.weight.size2()?;
        let weight = self
            .weight
            .f_tr()?
            .f_unsqueeze(0)?
            .f_expand([rows, input, out], false)?;
        match &self.bias {
            None => Ok(x.f_bmm(&weight)?),
            Some(bias) => {
                let bias = bias.f_expand([rows, x.size()[1], out], false)?;
                Ok(bias.f_baddbmm(x, &weight, 1, 1)?)
            }
        }
    }
}

/// Whether a projection has a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bias {
    Has,
    None,
}

impl From<bool> for Bias {
    fn from(has: bool) -> Self {
        if has { Self::Has } else { Self::None }
    }
}

/// Root mean square norm: the statistics in f32, the weight in the dtype of the model.
#[derive(Debug)]
pub(super) struct RmsNorm {
    weight: Tensor,
    eps: f64,
}

impl RmsNorm {
    pub(super) fn load(scope: &mut Scope<'_>, width: i64, eps: f64) -> Result<Self> {
        Ok(Self {
            weight: scope.tensor("weight", &[width])?,
            eps,
        })
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let wide = x.f_to_kind(Kind::Float)?;
        let variance = wide
            .f_pow_tensor_scalar(2)?
            .f_mean_dim(-1, true, Kind::Float)?;
        let scale = variance.f_add_scalar(self.eps)?.f_rsqrt()?;
        Ok(self
            .weight
            .f_mul(&wide.f_mul(&scale)?.f_to_kind(x.kind())?)?)
    }
}
