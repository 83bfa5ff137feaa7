//! Pixels.

use std::io::Cursor;

use png::{BitDepth, ColorType, Decoder};
use thiserror::Error;

/// 8-bit sRGB, row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// In px.
    pub width: usize,
    /// In px.
    pub height: usize,
    /// One per pixel.
    pub pixels: Vec<[u8; 3]>,
}

/// No picture that the judge knows how to read.
#[derive(Debug, Error)]
pub enum Unreadable {
    /// Broken, or no PNG.
    #[error("cannot decode the PNG")]
    Png(#[from] png::DecodingError),
    /// Another number of channels or bits.
    #[error("pixels are {0:?} of {1:?}")]
    Pixels(ColorType, BitDepth),
}

impl Picture {
    /// Decodes an 8-bit RGB PNG.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unreadable> {
        let (width, height, samples) = decode(bytes, ColorType::Rgb)?;
        let pixels = samples.as_chunks().0.to_vec();
        Ok(Self {
            width,
            height,
            pixels,
        })
    }

    /// The samples of an 8-bit grey PNG.
    pub(super) fn decode_gray(bytes: &[u8]) -> Result<Vec<u8>, Unreadable> {
        Ok(decode(bytes, ColorType::Grayscale)?.2)
    }
}

fn decode(bytes: &[u8], wanted: ColorType) -> Result<(usize, usize, Vec<u8>), Unreadable> {
    let mut reader = Decoder::new(Cursor::new(bytes)).read_info()?;
    let (color, depth) = reader.output_color_type();
    if (color, depth) != (wanted, BitDepth::Eight) {
        return Err(Unreadable::Pixels(color, depth));
    }
    let length = reader.output_buffer_size().unwrap_or(0);
    let mut samples = vec![0; length];
    let info = reader.next_frame(&mut samples)?;
    Ok((info.width as usize, info.height as usize, samples))
}
