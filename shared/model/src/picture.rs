//! A finished picture and its PNG.

use crate::error::{ModelError, Result};

/// 8-bit RGB pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub width: u32,
    pub height: u32,
    /// `3 * width * height` bytes: rows from the top, pixels from the left, red, green, blue.
    pub rgb: Vec<u8>,
}

impl Picture {
    /// The picture as a PNG file. The same pixels always give the same bytes.
    ///
    /// # Errors
    ///
    /// [`ModelError::Encode`] when a side is 0 or `rgb` is not `3 * width * height` long.
    pub fn to_png(&self) -> Result<Vec<u8>> {
        self.encode().map_err(|source| ModelError::Encode {
            format: "PNG",
            source: source.into(),
        })
    }

    fn encode(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.rgb)?;
        writer.finish()?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_png_holds_the_pixels() {
        let rgb: Vec<u8> = (0..2 * 3 * 3).map(|at| at * 14).collect();
        let picture = Picture {
            width: 2,
            height: 3,
            rgb,
        };

        let file = picture.to_png().unwrap();

        assert_eq!(file, picture.to_png().unwrap());
        let mut reader = png::Decoder::new(std::io::Cursor::new(&file))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        assert_eq!(
            (info.width, info.height, info.color_type),
            (2, 3, png::ColorType::Rgb)
        );
        assert_eq!(pixels, picture.rgb);
    }

    #[test]
    fn pixels_that_do_not_fill_the_picture_are_an_error() {
        for (width, height) in [(0, 1), (2, 2)] {
            let picture = Picture {
                width,
                height,
                rgb: vec![0; 3],
            };
            assert!(matches!(picture.to_png(), Err(ModelError::Encode { .. })));
        }
    }
}
