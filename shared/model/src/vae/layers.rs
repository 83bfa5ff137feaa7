//! Convolution, GroupNorm and residual block of the VAE.

use tch::Tensor;

use crate::error::Result;
use crate::weights::Scope;

/// Of every GroupNorm; diffusers writes it in the code, not in the config.
const EPSILON: f64 = 1e-6;

/// Input and output channels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channels {
    pub(super) input: i64,
    pub(super) output: i64,
}

/// Convolution that keeps height and width: kernel 1 or 3, padded by half of it.
#[derive(Debug)]
pub(super) struct Conv {
    weight: Tensor,
    bias: Tensor,
    padding: i64,
}

impl Conv {
    pub(super) fn load(mut weights: Scope<'_>, channels: Channels, kernel: i64) -> Result<Self> {
        let weight =
            weights.tensor("weight", &[channels.output, channels.input, kernel, kernel])?;
        let bias = weights.tensor("bias", &[channels.output])?;
        Ok(Self {
            weight,
            bias,
            padding: kernel.div_euclid(2),
        })
    }

    /// The same check of key and shape for a convolution that is not used.
    pub(super) fn skip(mut weights: Scope<'_>, channels: Channels, kernel: i64) -> Result<()> {
        weights.skip("weight", &[channels.output, channels.input, kernel, kernel])?;
        weights.skip("bias", &[channels.output])
    }

    /// (1, input, height, width) → (1, output, height, width)
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let padding = [self.padding, self.padding];
        Ok(x.f_conv2d(&self.weight, Some(&self.bias), [1, 1], padding, [1, 1], 1)?)
    }
}

/// GroupNorm with weights, then SiLU: the two always come together here.
#[derive(Debug)]
pub(super) struct NormSilu {
    weight: Tensor,
    bias: Tensor,
    groups: i64,
}

impl NormSilu {
    pub(super) fn load(mut weights: Scope<'_>, channels: i64, groups: i64) -> Result<Self> {
        let weight = weights.tensor("weight", &[channels])?;
        Ok(Self {
            weight,
            bias: weights.tensor("bias", &[channels])?,
            groups,
        })
    }

    pub(super) fn skip(mut weights: Scope<'_>, channels: i64) -> Result<()> {
        weights.skip("weight", &[channels])?;
        weights.skip("bias", &[channels])
    }

    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let normed = x.f_group_norm(
            self.groups,
            Some(&self.weight),
            Some(&self.bias),
            EPSILON,
            true,
        )?;
        Ok(normed.f_silu()?)
    }
}

/// Two convolutions and a way around them, through a 1 x 1 convolution where the width changes.
#[derive(Debug)]
pub(super) struct Resnet {
    norm1: NormSilu,
    conv1: Conv,
    norm2: NormSilu,
    conv2: Conv,
    shortcut: Option<Conv>,
}

impl Resnet {
    pub(super) fn load(mut weights: Scope<'_>, channels: Channels, groups: i64) -> Result<Self> {
        let Channels { input, output } = channels;
        let inner = Channels {
            input: output,
            output,
        };
        let shortcut = if input == output {
            None
        } else {
            Some(Conv::load(weights.scope("conv_shortcut"), channels, 1)?)
        };
        Ok(Self {
            norm1: NormSilu::load(weights.scope("norm1"), input, groups)?,
            conv1: Conv::load(weights.scope("conv1"), channels, 3)?,
            norm2: NormSilu::load(weights.scope("norm2"), output, groups)?,
            conv2: Conv::load(weights.scope("conv2"), inner, 3)?,
            shortcut,
        })
    }

    pub(super) fn skip(mut weights: Scope<'_>, channels: Channels) -> Result<()> {
        let Channels { input, output } = channels;
        NormSilu::skip(weights.scope("norm1"), input)?;
        Conv::skip(weights.scope("conv1"), channels, 3)?;
        NormSilu::skip(weights.scope("norm2"), output)?;
        Conv::skip(
            weights.scope("conv2"),
            Channels {
                input: output,
                output,
            },
            3,
        )?;
        if input == output {
            return Ok(());
        }
        Conv::skip(weights.scope("conv_shortcut"), channels, 1)
    }

    /// (1, input, height, width) → (1, output, height, width)
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.conv1.forward(&self.norm1.forward(x)?)?;
        let y = self.conv2.forward(&self.norm2.forward(&y)?)?;
        match &self.shortcut {
            Some(shortcut) => Ok(shortcut.forward(x)?.f_add(&y)?),
            None => Ok(x.f_add(&y)?),
        }
    }
}
