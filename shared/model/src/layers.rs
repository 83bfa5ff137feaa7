//! Layers that several parts share. A layer holds its tensors and applies them; it knows no keys but its own.

use tch::Tensor;

use crate::error::Result;
use crate::weights::Scope;

/// `y = x Wᵀ + b`. Always one `linear` call, never a product and a sum: they round differently.
#[derive(Debug)]
pub(crate) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// Reads `weight` (outputs, inputs) and `bias` (outputs).
    pub(crate) fn load(mut weights: Scope<'_>, inputs: i64, outputs: i64) -> Result<Self> {
        let weight = weights.tensor("weight", &[outputs, inputs])?;
        let bias = Some(weights.tensor("bias", &[outputs])?);
        Ok(Self { weight, bias })
    }

    /// Reads `weight` (outputs, inputs) only.
    pub(crate) fn load_without_bias(
        mut weights: Scope<'_>,
        inputs: i64,
        outputs: i64,
    ) -> Result<Self> {
        Ok(Self {
            weight: weights.tensor("weight", &[outputs, inputs])?,
            bias: None,
        })
    }

    /// (.., inputs) → (.., outputs)
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.f_linear(&self.weight, self.bias.as_ref())?)
    }
}
