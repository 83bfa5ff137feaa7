//! The VAE decoder: turns latents into pixels. The encoder's weights, which only editing needs, are checked and
//! left on disk.

mod config;
mod layers;

use tch::{Device, Kind, Tensor};

use crate::checkpoint::Checkpoint;
use crate::error::{ModelError, Result};
use crate::picture::Picture;
use crate::weights::{LoadOptions, PartReport, Scope, Weights};

use config::RGB;
use layers::{Channels, Conv, NormSilu, Resnet};

pub(crate) use config::VaeConfig;

/// Residual blocks in the middle of the decoder and of the encoder.
const MIDDLE_RESNETS: usize = 2;

/// Weights of the decoder.
#[derive(Debug)]
pub(crate) struct Vae {
    config: VaeConfig,
    device: Device,
    dtype: Kind,
    conv_in: Conv,
    middle: Vec<Resnet>,
    up_blocks: Vec<UpBlock>,
    norm_out: NormSilu,
    conv_out: Conv,
}

#[derive(Debug)]
struct UpBlock {
    resnets: Vec<Resnet>,
    /// After doubling height and width; the last block does not.
    upsampled: Option<Conv>,
}

impl Vae {
    /// Reads the folder `vae`.
    ///
    /// # Errors
    ///
    /// Files that are missing, truncated, of another model or with settings that this decoder does not compute.
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        options: LoadOptions,
    ) -> Result<(Self, PartReport)> {
        let dir = checkpoint.part("vae");
        let config = VaeConfig::read(&dir.join("config.json"))?;
        let mut weights = Weights::open(&dir, "diffusion_pytorch_model", options)?;
        let vae = Self::decoder(weights.scope("decoder"), config)?;
        skip_encoder(weights.scope("encoder"), &vae.config)?;
        Ok((vae, weights.finish()?))
    }

    fn decoder(mut weights: Scope<'_>, config: VaeConfig) -> Result<Self> {
        let options = weights.options();
        let groups = config.norm_num_groups;
        let widths: Vec<i64> = config.block_out_channels.iter().rev().copied().collect();
        let (widest, narrowest) = (widths[0], widths[widths.len() - 1]);
        let entry = Channels {
            input: config.latent_channels,
            output: widest,
        };
        let conv_in = Conv::load(weights.scope("conv_in"), entry, 3)?;
        let mut middle_weights = weights.scope("mid_block.resnets");
        let same = Channels {
            input: widest,
            output: widest,
        };
        let middle = (0..MIDDLE_RESNETS)
            .map(|index| Resnet::load(middle_weights.scope(index), same, groups))
            .collect::<Result<_>>()?;
        let mut up_blocks = Vec::with_capacity(widths.len());
        for (index, output) in widths.iter().copied().enumerate() {
            let input = widths[index.saturating_sub(1)];
            let up_weights = weights.scope(format_args!("up_blocks.{index}"));
            let mut block = UpBlock::load(up_weights, Channels { input, output }, &config)?;
            if index + 1 < widths.len() {
                let same = Channels {
                    input: output,
                    output,
                };
                let key = format!("up_blocks.{index}.upsamplers.0.conv");
                block.upsampled = Some(Conv::load(weights.scope(key), same, 3)?);
            }
            up_blocks.push(block);
        }
        let norm_out = NormSilu::load(weights.scope("conv_norm_out"), narrowest, groups)?;
        let exit = Channels {
            input: narrowest,
            output: RGB,
        };
        let conv_out = Conv::load(weights.scope("conv_out"), exit, 3)?;
        let (device, dtype) = (options.device, options.dtype);
        Ok(Self {
            config,
            device,
            dtype,
            conv_in,
            middle,
            up_blocks,
            norm_out,
            conv_out,
        })
    }

    pub(crate) fn config(&self) -> &VaeConfig {
        &self.config
    }

    /// Undoes the normalisation of the latents: `latents * std + mean` by channel, in the dtype of the weights.
    ///
    /// # Errors
    ///
    /// What libtorch reports.
    pub(crate) fn denormalized(&self, latents: &Tensor) -> Result<Tensor> {
        let by_channel = |values: &[f32]| -> Result<Tensor> {
            let values = Tensor::f_from_slice(values)?.f_view([1, -1, 1, 1])?;
            Ok(values.f_to_kind(self.dtype)?.f_to_device(self.device)?)
        };
        let latents = latents.f_to_kind(self.dtype)?; // (1, channels, height / scale, width / scale)
        let scaled = latents.f_mul(&by_channel(&self.config.latents_std)?)?;
        Ok(scaled.f_add(&by_channel(&self.config.latents_mean)?)?)
    }

    /// Decodes what [`Self::denormalized`] returned to (1, 3, height, width), nominally in -1..1, in the dtype of
    /// the weights.
    ///
    /// # Errors
    ///
    /// What libtorch reports.
    pub(crate) fn decode(&self, latents: &Tensor) -> Result<Tensor> {
        let mut x = self.conv_in.forward(latents)?;
        for resnet in &self.middle {
            x = resnet.forward(&x)?;
        }
        for block in &self.up_blocks {
            x = block.forward(&x)?;
        }
        self.conv_out.forward(&self.norm_out.forward(&x)?)
    }
}

impl UpBlock {
    /// All of the block but the convolution after doubling.
    fn load(mut weights: Scope<'_>, channels: Channels, config: &VaeConfig) -> Result<Self> {
        let mut weights = weights.scope("resnets");
        // One more than the encoder has: diffusers' `layers_per_block + 1`.
        let resnets = (0..=config.layers_per_block)
            .map(|index| {
                let input = if index == 0 {
                    channels.input
                } else {
                    channels.output
                };
                let channels = Channels {
                    input,
                    output: channels.output,
                };
                Resnet::load(weights.scope(index), channels, config.norm_num_groups)
            })
            .collect::<Result<_>>()?;
        Ok(Self {
            resnets,
            upsampled: None,
        })
    }

    /// (1, input, height, width) → (1, output, 2 height, 2 width), or not doubled in the last block
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = x.shallow_clone();
        for resnet in &self.resnets {
            x = resnet.forward(&x)?;
        }
        match &self.upsampled {
            Some(conv) => conv.forward(&x.f_upsample_nearest2d_vec(None::<&[i64]>, [2.0, 2.0])?),
            None => Ok(x),
        }
    }
}

/// Checks keys and shapes of the encoder.
fn skip_encoder(mut weights: Scope<'_>, config: &VaeConfig) -> Result<()> {
    let widths = &config.block_out_channels;
    let (narrowest, widest) = (widths[0], widths[widths.len() - 1]);
    Conv::skip(
        weights.scope("conv_in"),
        Channels {
            input: RGB,
            output: narrowest,
        },
        3,
    )?;
    for (index, output) in widths.iter().copied().enumerate() {
        let mut block = weights.scope(format_args!("down_blocks.{index}"));
        let mut input = widths[index.saturating_sub(1)];
        for layer in 0..config.layers_per_block {
            Resnet::skip(
                block.scope(format_args!("resnets.{layer}")),
                Channels { input, output },
            )?;
            input = output;
        }
        if index + 1 < widths.len() {
            let same = Channels {
                input: output,
                output,
            };
            Conv::skip(block.scope("downsamplers.0.conv"), same, 3)?;
        }
    }
    let same = Channels {
        input: widest,
        output: widest,
    };
    for index in 0..MIDDLE_RESNETS {
        Resnet::skip(
            weights.scope(format_args!("mid_block.resnets.{index}")),
            same,
        )?;
    }
    NormSilu::skip(weights.scope("conv_norm_out"), widest)?;
    // Mean and log-variance of each latent channel.
    let moments = Channels {
        input: widest,
        output: 2 * config.latent_channels,
    };
    Conv::skip(weights.scope("conv_out"), moments, 3)
}

/// Pixels from what [`Vae::decode`] returned: -1..1 becomes 0..255, clamped, rounded half to even as numpy does.
///
/// # Errors
///
/// [`ModelError::NotFinite`] when a value is NaN or infinite (half-precision overflow), or what libtorch reports.
pub(crate) fn picture_of(decoded: &Tensor) -> Result<Picture> {
    let (_, channels, height, width) = decoded.size4()?;
    let decoded = decoded.f_to_device(Device::Cpu)?;
    if decoded.f_isfinite()?.f_all()?.f_int64_value(&[])? == 0 {
        return Err(ModelError::NotFinite {
            what: "decoded picture",
        });
    }
    // In the dtype of the weights up to here, f32 from the product with 255 on: so does the reference.
    let unit = decoded
        .f_mul_scalar(0.5)?
        .f_add_scalar(0.5)?
        .f_clamp(0.0, 1.0)?;
    let bytes = unit
        .f_permute([0, 2, 3, 1])?
        .f_to_kind(Kind::Float)?
        .f_mul_scalar(255.0)?
        .f_round()?
        .f_to_kind(Kind::Uint8)?
        .f_contiguous()?; // (1, height, width, 3)
    let len =
        usize::try_from(channels * height * width).expect("sizes of a tensor are not negative");
    let mut rgb = vec![0u8; len];
    bytes.f_copy_data(&mut rgb, len)?;
    let side = |side: i64| u32::try_from(side).expect("the picture fits in memory");
    Ok(Picture {
        width: side(width),
        height: side(height),
        rgb,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::goldens::{self, CASES, Tensors, assert_close};

    #[test]
    fn decoding_equals_the_reference() {
        let (vae, _) = Vae::load(&goldens::tiny(), goldens::cpu_f32()).unwrap();
        for name in CASES {
            let golden = Tensors::of_case(name);
            let decoded = vae.decode(golden.get("vae.latents")).unwrap();
            // Convolutions of another CPU or another number of threads: 2.7e-6 measured.
            assert_close(name, &decoded, golden.get("vae.decoded"), 1e-4);
        }
    }

    #[test]
    fn pixels_are_clamped_and_rounded_half_to_even() {
        let level = |level: f64| (level / 255.0 * 2.0 - 1.0) as f32;
        // One row of six pixels; all channels alike.
        let values = [-9.0, -1.0, level(0.4), level(0.6), 1.0, 9.0];
        let decoded = Tensor::from_slice(&values)
            .view([1, 1, 1, 6])
            .expand([1, 3, 1, 6], false);

        let picture = picture_of(&decoded).unwrap();

        assert_eq!((picture.width, picture.height), (6, 1));
        let red: Vec<u8> = picture.rgb.iter().step_by(3).copied().collect();
        assert_eq!(red, [0, 0, 0, 1, 255, 255]);
        assert_eq!(picture.rgb[9..12], [1, 1, 1]);
    }

    #[test]
    fn pixels_go_row_by_row() {
        let decoded = Tensor::from_slice(&[-1.0f32, 1.0, 1.0, -1.0, 1.0, 1.0]).view([1, 3, 1, 2]);

        assert_eq!(
            picture_of(&decoded).unwrap().rgb,
            [0, 255, 255, 255, 0, 255]
        );
    }

    #[test]
    fn a_picture_that_is_not_finite_is_an_error() {
        for value in [f32::NAN, f32::INFINITY] {
            let decoded = Tensor::full([1, 3, 2, 2], f64::from(value), (Kind::Float, Device::Cpu));
            let error = picture_of(&decoded).unwrap_err();
            assert!(matches!(error, ModelError::NotFinite { .. }), "{error}");
        }
    }
}
