//! Prior tokens from a seed.

use protocol::{ImageSize, PriorTokens, Seed};

use crate::splitmix::SplitMix64;

/// Ids are below this: the codebook of the published model.
pub const CODEBOOK_SIZE: u32 = 1 << CODEBOOK_BITS;
const CODEBOOK_BITS: u32 = 14;

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
    fn tokens_do_not_change_between_versions() {
        assert_eq!(tokens(7, (96, 32)).ids(), [6_386, 275, 14_758]);
    }
}
