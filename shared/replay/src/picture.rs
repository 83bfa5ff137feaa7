//! A picture from a request: valid, cheap, and another one for every other request.

use protocol::{DenoiseParameters, ImageSize, PriorTokens, Seed};
use sha2::{Digest, Sha256};

use crate::splitmix::SplitMix64;

/// Pixels to a side of a square of one colour: the smallest picture has four of them.
const SQUARE_PIXELS: usize = 16;
const CHANNELS: usize = 3;

/// Everything that a picture depends on.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// As the client wrote it.
    pub prompt: &'a str,
    /// Of the output.
    pub seed: Seed,
    /// In pixels.
    pub size: ImageSize,
    /// Steps and guidance.
    pub denoise: DenoiseParameters,
    /// From the AR stage.
    pub prior: &'a PriorTokens,
}

impl Scene<'_> {
    /// The first 8 bytes of a SHA-256 over all of it; the lengths keep one field from running into the next.
    fn key(&self) -> u64 {
        let mut hash = Sha256::new();
        let mut number = |number: u64| hash.update(number.to_le_bytes());
        number(self.prompt.len() as u64);
        number(self.seed.get());
        number(self.size.width().into());
        number(self.size.height().into());
        number(self.denoise.steps().into());
        number(self.denoise.guidance_scale().to_bits());
        number(self.prior.rows().into());
        number(self.prior.columns().into());
        hash.update(self.prompt);
        for id in self.prior.ids() {
            hash.update(id.to_le_bytes());
        }
        let digest: [u8; 32] = hash.finalize().into();
        let first = digest.first_chunk().expect("32 bytes are more than 8");
        u64::from_le_bytes(*first)
    }
}

/// The encoder failed: a defect of ours, told like any other failure of an engine.
#[derive(Debug, thiserror::Error)]
#[error("cannot encode the picture as PNG")]
pub struct PictureError(#[from] png::EncodingError);

/// The PNG file of a scene: squares of colours drawn from its key. The same scene gives the same bytes.
pub fn picture(scene: &Scene<'_>) -> Result<Vec<u8>, PictureError> {
    let (width, height) = (scene.size.width(), scene.size.height());
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_compression(png::Compression::Fast);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels(scene.key(), width as usize, height as usize))?;
    writer.finish()?;
    Ok(file)
}

/// Rows from the top; both sides are multiples of [`SQUARE_PIXELS`].
fn pixels(key: u64, width: usize, height: usize) -> Vec<u8> {
    let mut colours = SplitMix64::new(key);
    let mut pixels = Vec::with_capacity(width * height * CHANNELS);
    for _ in 0..height / SQUARE_PIXELS {
        let row_start = pixels.len();
        for _ in 0..width / SQUARE_PIXELS {
            let [red, green, blue, ..] = colours.draw().to_le_bytes();
            pixels.extend_from_slice([[red, green, blue]; SQUARE_PIXELS].as_flattened());
        }
        let row = pixels[row_start..].to_vec();
        for _ in 1..SQUARE_PIXELS {
            pixels.extend_from_slice(&row);
        }
    }
    pixels
}

#[cfg(test)]
mod tests {
    use protocol::limits::{IMAGE_BYTES_MAX, SIDE_PIXELS_MAX};

    use super::*;
    use crate::prior_tokens;

    fn seed(seed: u64) -> Seed {
        Seed::new(seed).expect("in range")
    }

    fn size(width: u32, height: u32) -> ImageSize {
        ImageSize::new(width, height).expect("multiples of 32")
    }

    fn denoise(steps: u16, guidance_scale: f64) -> DenoiseParameters {
        DenoiseParameters::new(steps, guidance_scale).expect("in range")
    }

    fn file(size: ImageSize) -> Vec<u8> {
        let scene = Scene {
            prompt: "a red fox",
            seed: seed(7),
            size,
            denoise: denoise(4, 1.5),
            prior: &prior_tokens(seed(7), size),
        };
        let file = picture(&scene).expect("it encodes");
        assert_eq!(picture(&scene).expect("it encodes"), file);
        file
    }

    #[test]
    fn a_picture_is_a_png_of_its_size_in_more_than_one_colour() {
        for (width, height) in [(32, 32), (160, 96), (32, 64)] {
            let file = file(size(width, height));
            let mut reader = png::Decoder::new(std::io::Cursor::new(&file))
                .read_info()
                .expect("a PNG");
            let mut pixels = vec![0; reader.output_buffer_size().expect("small")];
            let info = reader.next_frame(&mut pixels).expect("whole");
            assert_eq!((info.width, info.height), (width, height));
            let (first, rest) = pixels.split_at(CHANNELS);
            assert!(rest.chunks_exact(CHANNELS).any(|pixel| pixel != first));
        }
    }

    #[test]
    fn the_largest_picture_fits_into_a_message() {
        let file = file(size(SIDE_PIXELS_MAX, SIDE_PIXELS_MAX));
        assert!(file.len() < IMAGE_BYTES_MAX, "{}", file.len());
    }

    #[test]
    fn every_part_of_a_scene_changes_its_picture() {
        let prior = prior_tokens(seed(7), size(64, 64));
        let other_prior = prior_tokens(seed(8), size(64, 64));
        let scene = Scene {
            prompt: "a red fox",
            seed: seed(7),
            size: size(64, 64),
            denoise: denoise(4, 1.5),
            prior: &prior,
        };
        let others = [
            Scene {
                prompt: "a red foxes",
                ..scene
            },
            Scene {
                seed: seed(8),
                ..scene
            },
            Scene {
                size: size(64, 32),
                ..scene
            },
            Scene {
                denoise: denoise(5, 1.5),
                ..scene
            },
            Scene {
                denoise: denoise(4, 1.0),
                ..scene
            },
            Scene {
                prior: &other_prior,
                ..scene
            },
        ];
        let file = picture(&scene).expect("it encodes");
        for other in others {
            assert_ne!(picture(&other).expect("it encodes"), file, "{other:?}");
        }
    }

    #[test]
    fn the_key_does_not_change_between_versions() {
        let prior = prior_tokens(seed(7), size(32, 32));
        let scene = Scene {
            prompt: "a red fox",
            seed: seed(7),
            size: size(32, 32),
            denoise: denoise(4, 1.5),
            prior: &prior,
        };
        assert_eq!(scene.key(), 0x73b7_43b8_97fb_3c01);
    }
}
