//! Sizes: of the picture in pixels, and of the two grids of tokens that the model writes for it.

use crate::error::{ModelError, Result};

/// Pixels to a side of one prior token: patch 16 on a picture of half the size.
pub(crate) const PIXELS_PER_TOKEN: u32 = 32;

/// Side of a square preview grid; other shapes keep about its area.
const PREVIEW_SIDE: f64 = 16.0;

/// A picture size in pixels; `PriorModel::generate` refuses one that the model cannot paint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageSize {
    pub height: u32,
    pub width: u32,
}

/// Rows and columns of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Rows.
    pub h: u32,
    /// Columns.
    pub w: u32,
}

impl Grid {
    /// Its ids.
    pub fn tokens(self) -> usize {
        self.h as usize * self.w as usize
    }
}

/// What the model writes for one picture: the preview, the large grid, one last token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TargetGrids {
    /// The prior of the picture.
    pub large: Grid,
    /// What the model writes first and nobody paints.
    pub preview: Grid,
}

impl TargetGrids {
    /// Both sides must be multiples of 32. The preview is about 256 tokens whatever the size.
    ///
    /// # Errors
    ///
    /// Another size, or one so elongated that its preview is empty.
    pub fn of(size: ImageSize) -> Result<Self> {
        for side in [size.height, size.width] {
            if side == 0 || !side.is_multiple_of(PIXELS_PER_TOKEN) {
                let (width, height) = (size.width, size.height);
                let problem = format!("{width}x{height} is no multiple of {PIXELS_PER_TOKEN}");
                return Err(ModelError::request("size", problem));
            }
        }
        // Exact, as just checked.
        let large = Grid {
            h: size.height.div_euclid(PIXELS_PER_TOKEN),
            w: size.width.div_euclid(PIXELS_PER_TOKEN),
        };
        let ratio = f64::from(large.h) / f64::from(large.w);
        // Truncation, as the reference does it; a float this small fits.
        let preview = Grid {
            h: (ratio.sqrt() * PREVIEW_SIDE) as u32,
            w: ((1.0 / ratio).sqrt() * PREVIEW_SIDE) as u32,
        };
        if preview.tokens() == 0 {
            let problem = format!("{}x{} is too elongated", size.width, size.height);
            return Err(ModelError::request("size", problem));
        }
        Ok(Self { large, preview })
    }

    /// Ids inside the grids; the model writes one more, the end.
    pub fn tokens(self) -> usize {
        self.large.tokens() + self.preview.tokens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_preview_keeps_the_shape_and_about_256_tokens() {
        for (height, width, preview) in [
            (1024, 1024, Grid { h: 16, w: 16 }),
            (128, 128, Grid { h: 16, w: 16 }),
            (1152, 768, Grid { h: 19, w: 13 }),
            (96, 160, Grid { h: 12, w: 20 }),
            (2048, 2048, Grid { h: 16, w: 16 }),
        ] {
            let grids = TargetGrids::of(ImageSize { height, width }).expect("a size");
            assert_eq!(grids.preview, preview, "{height}x{width}");
            assert_eq!(
                grids.large,
                Grid {
                    h: height.div_euclid(32),
                    w: width.div_euclid(32)
                }
            );
        }
    }

    #[test]
    fn a_side_that_is_no_multiple_of_32_is_refused() {
        for (height, width) in [(0, 32), (32, 0), (100, 128), (128, 100), (16, 16)] {
            let size = ImageSize { height, width };
            let error = TargetGrids::of(size).expect_err("no multiple of 32");
            assert!(matches!(error, ModelError::Request { field: "size", .. }));
        }
    }

    #[test]
    fn a_strip_with_an_empty_preview_is_refused() {
        let size = ImageSize {
            height: 32,
            width: 32 * 257,
        };
        assert!(matches!(
            TargetGrids::of(size),
            Err(ModelError::Request { field: "size", .. })
        ));
    }
}
