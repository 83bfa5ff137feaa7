//! What a picture is asked for: size, format, denoising parameters. A value of these types has been checked.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{
    ids::serde_as_text,
    limits::{GUIDANCE_SCALE_MAX, SIDE_PIXELS_MAX, SIDE_PIXELS_MULTIPLE, STEPS_MAX},
};

/// A picture parameter outside what the model can do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParameterError {
    /// Not `<width>x<height>` in decimal digits.
    #[error("size is not <width>x<height>, for example 1024x1024")]
    SizeText,
    /// A side that is no multiple of 32, or is 0, or is too long.
    #[error(
        "width and height must be multiples of {SIDE_PIXELS_MULTIPLE} from {SIDE_PIXELS_MULTIPLE} to {SIDE_PIXELS_MAX}, not {width}x{height}"
    )]
    SizeSide {
        /// In pixels.
        width: u32,
        /// In pixels.
        height: u32,
    },
    /// Steps of 0 or above the schedule.
    #[error("num_inference_steps must be a whole number from 1 to {STEPS_MAX}")]
    Steps,
    /// A guidance scale that is negative, too large or no number.
    #[error("guidance_scale must be a number from 0 to {GUIDANCE_SCALE_MAX}")]
    GuidanceScale,
    /// Not a known image format.
    #[error("output_format must be png")]
    Format,
}

/// Width and height in pixels, both multiples of 32. Text form `<width>x<height>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageSize {
    width: u32,
    height: u32,
}

impl ImageSize {
    /// Checks both sides: multiples of [`SIDE_PIXELS_MULTIPLE`], at least one of it, at most [`SIDE_PIXELS_MAX`].
    pub fn new(width: u32, height: u32) -> Result<Self, ParameterError> {
        let fits = |side: u32| {
            side > 0 && side <= SIDE_PIXELS_MAX && side.is_multiple_of(SIDE_PIXELS_MULTIPLE)
        };
        if fits(width) && fits(height) {
            Ok(Self { width, height })
        } else {
            Err(ParameterError::SizeSide { width, height })
        }
    }

    /// In pixels.
    pub const fn width(self) -> u32 {
        self.width
    }

    /// In pixels.
    pub const fn height(self) -> u32 {
        self.height
    }

    /// Rows and columns of the prior-token grid, one token per 32 x 32 pixels (`token_h`, `token_w`).
    pub fn prior_grid(self) -> (u16, u16) {
        let tokens =
            |side: u32| u16::try_from(side / SIDE_PIXELS_MULTIPLE).expect("at most 2048 / 32");
        (tokens(self.height), tokens(self.width))
    }
}

impl fmt::Display for ImageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

impl FromStr for ImageSize {
    type Err = ParameterError;
    fn from_str(text: &str) -> Result<Self, ParameterError> {
        let (width, height) = text.split_once('x').ok_or(ParameterError::SizeText)?;
        Self::new(side(width)?, side(height)?)
    }
}
serde_as_text!(ImageSize);

/// Decimal digits without sign or leading zero, so that each size has one text.
fn side(text: &str) -> Result<u32, ParameterError> {
    let canonical = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    if !canonical {
        return Err(ParameterError::SizeText);
    }
    // Only digits are left, so a failure means a number beyond u32: an honest side, just far too long.
    Ok(text.parse().unwrap_or(u32::MAX))
}

/// How the picture bytes are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageFormat {
    /// Lossless, 8 bits RGB.
    Png,
}

impl ImageFormat {
    /// The media type of HTTP.
    pub const fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Png => f.write_str("png"),
        }
    }
}

impl FromStr for ImageFormat {
    type Err = ParameterError;
    fn from_str(text: &str) -> Result<Self, ParameterError> {
        match text {
            "png" => Ok(Self::Png),
            _ => Err(ParameterError::Format),
        }
    }
}
serde_as_text!(ImageFormat);

/// How an output is denoised.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct DenoiseParameters {
    steps: u16,
    guidance_scale: f64,
}

impl DenoiseParameters {
    /// diffusers' default for GLM-Image.
    pub const STEPS_DEFAULT: u16 = 50;
    /// diffusers' default for GLM-Image.
    pub const GUIDANCE_SCALE_DEFAULT: f64 = 1.5;

    /// Checks `steps` against [`STEPS_MAX`] and `guidance_scale` against [`GUIDANCE_SCALE_MAX`].
    pub fn new(steps: u16, guidance_scale: f64) -> Result<Self, ParameterError> {
        if steps == 0 || steps > STEPS_MAX {
            return Err(ParameterError::Steps);
        }
        if !(0.0..=GUIDANCE_SCALE_MAX).contains(&guidance_scale) {
            return Err(ParameterError::GuidanceScale);
        }
        Ok(Self {
            steps,
            guidance_scale,
        })
    }

    /// Denoising steps.
    pub const fn steps(self) -> u16 {
        self.steps
    }

    /// Weight of the conditional prediction; 1 and below run without guidance.
    pub const fn guidance_scale(self) -> f64 {
        self.guidance_scale
    }
}

impl<'de> Deserialize<'de> for DenoiseParameters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename = "DenoiseParameters", deny_unknown_fields)]
        struct Unchecked {
            steps: u16,
            guidance_scale: f64,
        }
        let unchecked = Unchecked::deserialize(deserializer)?;
        Self::new(unchecked.steps, unchecked.guidance_scale).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_size_reads_back_from_its_text(w in 1u32..=64, h in 1u32..=64) {
            let size = ImageSize::new(w * 32, h * 32).expect("multiples of 32 up to 2048");
            prop_assert_eq!(size.to_string().parse(), Ok(size));
        }

        #[test]
        fn any_text_is_a_size_or_an_error(text in "\\PC*") {
            if let Ok(size) = text.parse::<ImageSize>() {
                prop_assert_eq!(size.to_string(), text);
            }
        }
    }

    #[test]
    fn sizes_outside_the_model_are_refused() {
        for text in [
            "",
            "axb",
            "128",
            "128x",
            "x128",
            "128x128x128",
            "+128x128",
            "0128x128",
            " 128x128",
            "128X128",
        ] {
            assert_eq!(
                text.parse::<ImageSize>(),
                Err(ParameterError::SizeText),
                "{text}"
            );
        }
        for text in [
            "0x32",
            "100x100",
            "1000000x32",
            "32x2080",
            "33x32",
            "99999999999999x32",
        ] {
            let error = text.parse::<ImageSize>();
            assert!(
                matches!(error, Err(ParameterError::SizeSide { .. })),
                "{text}: {error:?}"
            );
        }
    }

    #[test]
    fn the_prior_grid_is_rows_by_columns() {
        assert_eq!(
            ImageSize::new(1152, 864).expect("allowed").prior_grid(),
            (27, 36)
        );
    }

    #[test]
    fn parameters_outside_the_model_are_refused() {
        assert_eq!(DenoiseParameters::new(0, 1.5), Err(ParameterError::Steps));
        assert_eq!(
            DenoiseParameters::new(1001, 1.5),
            Err(ParameterError::Steps)
        );
        for scale in [-0.1, 20.1, f64::NAN, f64::INFINITY] {
            assert_eq!(
                DenoiseParameters::new(50, scale),
                Err(ParameterError::GuidanceScale),
                "{scale}"
            );
        }
        assert!(DenoiseParameters::new(1000, 0.0).is_ok());
    }
}
