//! Prior tokens from a seed, and how many tokens a row writes.

use protocol::{ImageSize, PriorTokens, Seed};

use crate::splitmix::SplitMix64;

/// Ids are below this: the codebook of the published model.
pub const CODEBOOK_SIZE: u32 = 1 << CODEBOOK_BITS;
const CODEBOOK_BITS: u32 = 14;

/// Side of a square picture's preview; other shapes keep about its area.
const PREVIEW_SIDE: f64 = 16.0;

/// The grid of an output: it fits `size` and depends on nothing else but the seed.
pub fn prior_tokens(seed: Seed, size: ImageSize) -> PriorTokens {
    let mut stream = SplitMix64::new(seed.get());
    let mut id = || u16::try_from(stream.draw() >> (u64::BITS - CODEBOOK_BITS)).expect("14 bits");
    let (rows, columns) = size.prior_grid();
    let ids = (0..usize::from(rows) * usize::from(columns))
        .map(|_| id())
        .collect();
    PriorTokens::new(rows, columns, ids).expect("as many ids as the grid has places")
}

/// Tokens that the model writes for an output: a preview of about 256 tokens in the picture's shape, the large grid, and
/// one more.
pub fn generated_tokens(size: ImageSize) -> u32 {
    let (rows, columns) = size.prior_grid();
    let (rows, columns) = (f64::from(rows), f64::from(columns));
    let (preview_rows, preview_columns) = (
        ((rows / columns).sqrt() * PREVIEW_SIDE).floor(),
        ((columns / rows).sqrt() * PREVIEW_SIDE).floor(),
    );
    // Whole numbers; a cast of a float that is too large, which none is, would only saturate.
    (rows * columns + preview_rows * preview_columns) as u32 + 1
}

#[cfg(test)]
mod tests {
    use protocol::limits::SEED_MAX;

    use super::*;

    fn tokens(seed: u64, (width, height): (u32, u32)) -> PriorTokens {
        let size = ImageSize::new(width, height).expect("multiples of 32");
        let tokens = prior_tokens(Seed::new(seed).expect("in range"), size);
        assert!(tokens.fits(size), "{size}");
        tokens
    }

    #[test]
    fn the_grid_fits_and_its_ids_are_in_the_codebook() {
        for size in [(32, 32), (64, 32), (32, 96), (2048, 2048)] {
            for seed in [0, 1, SEED_MAX] {
                let tokens = tokens(seed, size);
                let ids = tokens.ids();
                assert!(ids.iter().all(|id| u32::from(*id) < CODEBOOK_SIZE));
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens_and_another_seed_others() {
        for seed in [0, 7, SEED_MAX - 1] {
            let first = tokens(seed, (128, 96));
            assert_eq!(tokens(seed, (128, 96)), first, "{seed}");
            assert_ne!(tokens(seed + 1, (128, 96)), first, "{seed}");
        }
    }

    #[test]
    fn rows_are_as_long_as_the_models() {
        // Computed with the reference's code.
        for ((width, height), tokens) in [
            ((512, 512), 513),
            ((1024, 1024), 1281),
            ((1152, 864), 1207),
            ((1280, 736), 1173),
            ((1088, 1920), 2293),
            ((2048, 2048), 4353),
        ] {
            let size = ImageSize::new(width, height).expect("multiples of 32");
            assert_eq!(generated_tokens(size), tokens, "{size}");
        }
    }

    #[test]
    fn tokens_do_not_change_between_versions() {
        assert_eq!(tokens(7, (96, 32)).ids(), [6_386, 275, 14_758]);
    }
}
