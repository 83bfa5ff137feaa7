//! What enters the DiT's blocks: patches of latents, projected glyph and prior embeddings, time and size.

use tch::{Device, Kind, Tensor};

use crate::error::Result;
use crate::layers::Linear;
use crate::weights::Scope;

use super::config::DitConfig;

/// Lowest frequency of a sinusoid is about 1 / MAX_PERIOD (`Timesteps` of diffusers).
const MAX_PERIOD: f64 = 10_000.0;

/// (1, channels, height, width) → (1, patches, channels * patch²), patches row-major.
pub(super) fn patches_of(latents: &Tensor, patch: i64) -> Result<Tensor> {
    let (batch, channels, height, width) = latents.size4()?;
    let (rows, columns) = (height.div_euclid(patch), width.div_euclid(patch));
    Ok(latents
        .f_reshape([batch, channels, rows, patch, columns, patch])?
        .f_permute([0, 2, 4, 1, 3, 5])?
        .f_flatten(3, 5)?
        .f_flatten(1, 2)?)
}

/// The inverse of [`patches_of`] for a picture of `rows` x `columns` patches.
pub(super) fn latents_of(patches: &Tensor, rows: i64, columns: i64, patch: i64) -> Result<Tensor> {
    let (batch, _, _) = patches.size3()?;
    Ok(patches
        .f_reshape([batch, rows, columns, -1, patch, patch])?
        .f_permute([0, 3, 1, 4, 2, 5])?
        .f_flatten(4, 5)?
        .f_flatten(2, 3)?)
}

/// Which activation stands between the two layers of a [`Projector`].
#[derive(Clone, Copy, Debug)]
pub(super) enum Activation {
    Gelu,
    GeluTanh,
    Silu,
}

/// Two linear layers with an activation between; keys `net.0.proj` and `net.2`.
#[derive(Debug)]
pub(super) struct Projector {
    inner: Linear,
    outer: Linear,
    activation: Activation,
}

/// Widths of a [`Projector`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Widths {
    pub(super) input: i64,
    pub(super) inner: i64,
    pub(super) output: i64,
}

impl Projector {
    pub(super) fn load(
        mut weights: Scope<'_>,
        widths: Widths,
        activation: Activation,
    ) -> Result<Self> {
        let inner = Linear::load(weights.scope("net.0.proj"), widths.input, widths.inner)?;
        let outer = Linear::load(weights.scope("net.2"), widths.inner, widths.output)?;
        Ok(Self {
            inner,
            outer,
            activation,
        })
    }

    /// (.., input) → (.., output)
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let inner = self.inner.forward(x)?;
        let active = match self.activation {
            Activation::Gelu => inner.f_gelu("none")?,
            Activation::GeluTanh => inner.f_gelu("tanh")?,
            Activation::Silu => inner.f_silu()?,
        };
        self.outer.forward(&active)
    }
}

/// `time_condition_embed`: embeds the timestep and the size of the picture.
#[derive(Debug)]
pub(super) struct TimeEmbedding {
    timestep: [Linear; 2],
    size: [Linear; 2],
    time_dim: i64,
    condition_dim: i64,
    device: Device,
    dtype: Kind,
}

impl TimeEmbedding {
    pub(super) fn load(mut weights: Scope<'_>, config: &DitConfig) -> Result<Self> {
        let options = weights.options();
        let (time_dim, condition_dim) = (config.time_embed_dim, config.condition_dim);
        let mut pair = |name: &str, input: i64| -> Result<[Linear; 2]> {
            let mut scope = weights.scope(name);
            Ok([
                Linear::load(scope.scope("linear_1"), input, time_dim)?,
                Linear::load(scope.scope("linear_2"), time_dim, time_dim)?,
            ])
        };
        let timestep = pair("timestep_embedder", time_dim)?;
        // Crop top and left, height and width.
        let size = pair("condition_embedder", 4 * condition_dim)?;
        let (device, dtype) = (options.device, options.dtype);
        Ok(Self {
            timestep,
            size,
            time_dim,
            condition_dim,
            device,
            dtype,
        })
    }

    /// Embedding of the picture's size in pixels, cropped at (0, 0): (1, time_dim). The same for every step.
    pub(super) fn size(&self, height: i64, width: i64) -> Result<Tensor> {
        let numbers = [0.0, 0.0, height as f32, width as f32];
        let waves = sinusoids(&numbers, self.condition_dim)?.f_reshape([1, -1])?;
        self.two_layers(&self.size, &waves)
    }

    /// What modulates every block: (1, time_dim). `size` is what [`Self::size`] returned.
    pub(super) fn forward(&self, timestep: f32, size: &Tensor) -> Result<Tensor> {
        let waves = sinusoids(&[timestep], self.time_dim)?;
        let time = self.two_layers(&self.timestep, &waves)?;
        Ok(time.f_add(size)?.f_silu()?)
    }

    fn two_layers(&self, [first, second]: &[Linear; 2], waves: &Tensor) -> Result<Tensor> {
        let waves = waves.f_to_kind(self.dtype)?.f_to_device(self.device)?;
        second.forward(&first.forward(&waves)?.f_silu()?)
    }
}

/// One row a number, cosines before sines (`flip_sin_to_cos`, no frequency shift): (numbers, dim), f32, on the CPU.
fn sinusoids(numbers: &[f32], dim: i64) -> Result<Tensor> {
    let half = dim.div_euclid(2);
    let frequencies = Tensor::f_arange(half, (Kind::Float, Device::Cpu))?
        .f_mul_scalar(-MAX_PERIOD.ln())?
        .f_div_scalar(half)?
        .f_exp()?;
    let angles = Tensor::f_from_slice(numbers)?
        .f_unsqueeze(1)?
        .f_mul(&frequencies.f_unsqueeze(0)?)?;
    Ok(Tensor::f_cat(&[angles.f_cos()?, angles.f_sin()?], -1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpatching_undoes_patching() {
        let latents = Tensor::arange(2 * 4 * 6, (Kind::Float, Device::Cpu)).reshape([1, 2, 4, 6]);

        let patches = patches_of(&latents, 2).unwrap();

        assert_eq!(patches.size(), [1, 6, 8]);
        // First patch: rows 0 and 1, columns 0 and 1, channel by channel.
        let first = Vec::<f32>::try_from(patches.get(0).get(0)).unwrap();
        assert_eq!(first, [0.0, 1.0, 6.0, 7.0, 24.0, 25.0, 30.0, 31.0]);
        assert_eq!(latents_of(&patches, 2, 3, 2).unwrap(), latents);
    }

    #[test]
    fn sinusoids_put_cosines_first() {
        let waves = sinusoids(&[0.0, 999.0], 4).unwrap();

        let waves: Vec<f32> = Vec::try_from(waves.reshape([-1])).unwrap();
        assert_eq!(waves[..4], [1.0, 1.0, 0.0, 0.0]);
        for (found, expected) in
            waves[4..]
                .iter()
                .zip([999f64.cos(), 9.99f64.cos(), 999f64.sin(), 9.99f64.sin()])
        {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-4,
                "{found} {expected}"
            );
        }
    }
}
