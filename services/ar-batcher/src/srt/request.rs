//! The body of `POST /generate`: always the batched form, lists of as many entries as there are rows. Pure.

use model::{Draw, Grid, SamplingConfig, TargetGrids};
use protocol::{OutputId, Seed};
use serde::Serialize;
use uuid::Uuid;

/// A row, tokenized.
#[derive(Debug, Clone)]
pub(crate) struct SrtRow {
    pub(crate) output: OutputId,
    pub(crate) ids: Vec<i64>,
    pub(crate) grids: TargetGrids,
    pub(crate) seed: Seed,
}

/// The body.
#[derive(Debug, Serialize)]
pub(crate) struct Generate<'a> {
    input_ids: Vec<&'a [i64]>,
    image_data: Vec<[ImageData; 1]>,
    sampling_params: Vec<SamplingParams>,
    rid: &'a [String],
}

/// What SRT computes the positions of the new tokens from. There is no picture in it.
#[derive(Debug, Serialize)]
struct ImageData {
    /// (time, height, width) of the large grid, then of the preview.
    image_grid_thw: [[u32; 3]; 2],
}

#[derive(Debug, Clone, Copy, Serialize)]
struct SamplingParams {
    temperature: f64,
    top_p: f64,
    /// -1 keeps all. SRT's own default; transformers' is 50, which is what the checkpoint means when it says nothing.
    top_k: i64,
    max_new_tokens: usize,
    /// Without it the grid ends where the model happens to draw an end token.
    ignore_eos: bool,
    /// An i64 on SRT's side, as ours are (`SEED_MAX`). Counts with `--enable-deterministic-inference` only.
    sampling_seed: u64,
}

/// How SRT is to draw, in its words.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SrtSampling {
    temperature: f64,
    top_p: f64,
    top_k: i64,
}

/// The checkpoint wants something that SRT is not asked for.
#[derive(Debug, thiserror::Error)]
#[error("generation_config.json has suppress_tokens, which --engine srt does not pass on")]
pub(crate) struct Unsupported;

impl TryFrom<&SamplingConfig> for SrtSampling {
    type Error = Unsupported;

    fn try_from(config: &SamplingConfig) -> Result<Self, Unsupported> {
        if !config.suppressed.is_empty() {
            return Err(Unsupported);
        }
        Ok(match config.draw {
            // SRT takes temperature 0 for the likeliest id.
            Draw::Greedy => Self {
                temperature: 0.0,
                top_p: 1.0,
                top_k: -1,
            },
            Draw::Sample(warpers) => Self {
                temperature: warpers.temperature,
                top_p: warpers.top_p.unwrap_or(1.0),
                top_k: warpers.top_k.unwrap_or(-1),
            },
        })
    }
}

/// The preview, the large grid and the end: what SRT writes for one row.
pub(crate) fn new_tokens(grids: TargetGrids) -> usize {
    grids.tokens() + 1
}

/// A name for one attempt at a row. Unique, because SRT refuses one that it has in flight (older versions died of it),
/// and never the start of another one, because its abort takes every name that starts with the one it is given.
pub(crate) fn rid(output: OutputId) -> String {
    format!("{output}.{}", Uuid::now_v7().simple())
}

impl<'a> Generate<'a> {
    pub(crate) fn rows(&self) -> usize {
        self.rid.len()
    }

    /// One row at least; `rids` has one for each.
    pub(crate) fn new(rows: &'a [SrtRow], rids: &'a [String], sampling: SrtSampling) -> Self {
        let SrtSampling {
            temperature,
            top_p,
            top_k,
        } = sampling;
        let thw = |grid: Grid| [1, grid.h, grid.w];
        Self {
            input_ids: rows.iter().map(|row| row.ids.as_slice()).collect(),
            image_data: rows
                .iter()
                .map(|row| {
                    [ImageData {
                        image_grid_thw: [thw(row.grids.large), thw(row.grids.preview)],
                    }]
                })
                .collect(),
            sampling_params: rows
                .iter()
                .map(|row| SamplingParams {
                    temperature,
                    top_p,
                    top_k,
                    max_new_tokens: new_tokens(row.grids),
                    ignore_eos: true,
                    sampling_seed: row.seed.get(),
                })
                .collect(),
            rid: rids,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use model::{Checkpoint, ImageSize, PriorCodec, Warpers};
    use protocol::{JobId, OutputIndex, limits::SEED_MAX};

    use super::*;

    fn tiny() -> PriorCodec {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tiny");
        let checkpoint = Checkpoint::open(&tiny).expect("the tiny checkpoint");
        PriorCodec::open(&checkpoint).expect("its configs")
    }

    fn output(index: u8) -> OutputId {
        JobId::from_u128(7).output(OutputIndex::new(index).expect("an index"))
    }

    fn row(codec: &PriorCodec, prompt: &str, (width, height): (u32, u32), seed: u64) -> SrtRow {
        let prompt = codec.prompt(prompt, ImageSize { height, width });
        let prompt = prompt.expect("a short prompt of a good size");
        SrtRow {
            output: output(0),
            ids: prompt.ids,
            grids: prompt.grids,
            seed: Seed::new(seed).expect("in range"),
        }
    }

    /// The goldens' ids are transformers' (5.24.0) for the tiny tokenizer, not ours; see `tests/data/srt/README.md`.
    #[test]
    fn the_bytes_of_a_request_are_the_contracts() {
        let codec = tiny();
        let sampling = SrtSampling::try_from(codec.sampling()).expect("plain sampling");
        let fox = "a red fox in the snow";
        let square = row(&codec, "a cat", (1024, 1024), 42);
        let wide = row(&codec, fox, (1152, 864), SEED_MAX);
        let rid = |n: u8| format!("rid-{n}");
        for (golden, rows, rids) in [
            (
                include_str!("../../../../tests/data/srt/generate_1024x1024.json"),
                vec![square.clone()],
                vec![rid(0)],
            ),
            (
                include_str!("../../../../tests/data/srt/generate_1152x864.json"),
                vec![wide.clone()],
                vec![rid(0)],
            ),
            (
                include_str!("../../../../tests/data/srt/generate_both.json"),
                vec![square, wide],
                vec![rid(0), rid(1)],
            ),
        ] {
            let body = serde_json::to_string(&Generate::new(&rows, &rids, sampling));
            assert_eq!(body.expect("JSON"), golden.trim_end());
        }
    }

    #[test]
    fn a_checkpoint_that_says_nothing_means_what_transformers_means() {
        let published = SrtSampling::try_from(tiny().sampling()).expect("plain sampling");
        let (temperature, top_p, top_k) = (0.9, 0.75, 50);
        assert_eq!(
            published,
            SrtSampling {
                temperature,
                top_p,
                top_k
            }
        );
    }

    #[test]
    fn what_is_off_is_off_on_srts_side_too() {
        let config = |draw, suppressed| SamplingConfig { draw, suppressed };
        let warpers = Warpers {
            temperature: 1.0,
            top_k: None,
            top_p: None,
        };
        for (draw, temperature) in [(Draw::Sample(warpers), 1.0), (Draw::Greedy, 0.0)] {
            let sampling = SrtSampling::try_from(&config(draw, Vec::new()));
            let off = SrtSampling {
                temperature,
                top_p: 1.0,
                top_k: -1,
            };
            assert_eq!(sampling.expect("nothing suppressed"), off);
        }
        assert!(SrtSampling::try_from(&config(Draw::Greedy, vec![7])).is_err());
    }

    #[test]
    fn no_attempt_has_the_name_of_another_nor_its_beginning() {
        let rids: Vec<String> = (0..8).flat_map(|i| [i; 2]).map(output).map(rid).collect();
        for (i, one) in rids.iter().enumerate() {
            for (j, other) in rids.iter().enumerate() {
                assert!(i == j || !other.starts_with(one.as_str()), "{one} {other}");
            }
        }
    }
}
