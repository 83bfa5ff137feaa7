//! What a picture is painted from, and the checks that nothing else has to repeat.

use tch::Tensor;

use crate::error::{ModelError, Result};
use crate::schedule::{Schedule, SchedulerConfig};

/// Patches on a side of the square that one prior token stands for.
const PATCHES_PER_TOKEN: u32 = 2;

/// What to paint.
#[derive(Clone, Copy, Debug)]
pub struct PaintRequest<'a> {
    /// Only its quoted texts are used here; the rest is in `prior`.
    pub prompt: &'a str,
    /// Pixels; a multiple of [`Limits::side_multiple`].
    pub height: u32,
    /// Pixels; a multiple of [`Limits::side_multiple`].
    pub width: u32,
    /// Seed of the initial noise. The same seed as the prior's, as in the reference.
    pub seed: u64,
    /// Denoising steps, from 1 to [`Limits::steps_max`].
    pub steps: u32,
    /// Above 1: guided, two forwards a step. Otherwise one.
    pub guidance_scale: f64,
    pub prior: PriorGrid<'a>,
}

/// What the AR model made of the prompt: one token for each square of 32 x 32 pixels.
#[derive(Clone, Copy, Debug)]
pub struct PriorGrid<'a> {
    /// Rows: height / 32.
    pub h: u32,
    /// Columns: width / 32.
    pub w: u32,
    /// Row-major, `h * w` ids, each below [`Limits::codebook_size`].
    pub ids: &'a [u16],
}

/// How far a picture is; told after the fact.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PaintProgress {
    GlyphEncoded,
    /// `step` of `steps` is done; counts from 1. It started at the noise level `sigma`.
    Step {
        step: u32,
        steps: u32,
        sigma: f32,
    },
    Decoded,
}

/// A look at the tensors of a picture in the making, for tests against the reference.
#[derive(Debug)]
pub enum PaintStage<'a> {
    /// Embeddings of the quoted texts: (1, tokens, width).
    Glyphs(&'a Tensor),
    /// The initial noise: (1, channels, height / 8, width / 8).
    Noise(&'a Tensor),
    /// Prediction of a step's forward that sees the prior, in the dtype of the weights.
    Conditional(&'a Tensor),
    /// Prediction of a step's forward that does not; absent without guidance.
    Unconditional(&'a Tensor),
    /// Latents after a step, f32.
    Latents(&'a Tensor),
    /// Input of the VAE decoder.
    Denormalized(&'a Tensor),
    /// Output of the VAE decoder: (1, 3, height, width).
    Decoded(&'a Tensor),
}

/// What a loaded model can paint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pixels on a side of a DiT patch.
    pub patch_pixels: u32,
    /// Prior ids are below this.
    pub codebook_size: u32,
    pub steps_max: u32,
}

impl Limits {
    /// Height and width are multiples of this many pixels: 32 for the published sizes.
    pub fn side_multiple(&self) -> u32 {
        self.patch_pixels.saturating_mul(PATCHES_PER_TOKEN)
    }
}

/// A request that a model can paint.
#[derive(Debug)]
pub(crate) struct Plan {
    /// Rows and columns of DiT patches.
    pub(crate) patch_grid: [i64; 2],
    /// The prior token of each patch, row-major.
    pub(crate) prior_ids: Vec<i64>,
    pub(crate) schedule: Schedule,
}

impl PaintRequest<'_> {
    pub(crate) fn plan(&self, limits: &Limits, scheduler: &SchedulerConfig) -> Result<Plan> {
        let token_rows = tokens_along("height", self.height, limits)?;
        let token_columns = tokens_along("width", self.width, limits)?;
        let prior = self.prior;
        if (prior.h, prior.w) != (token_rows, token_columns) {
            let problem = format!(
                "is {} x {} tokens, need {token_rows} x {token_columns} for {} x {} pixels",
                prior.h, prior.w, self.height, self.width
            );
            return Err(ModelError::request("prior", problem));
        }
        if !self.guidance_scale.is_finite() {
            let problem = format!("is {}, need a number", self.guidance_scale);
            return Err(ModelError::request("guidance_scale", problem));
        }
        let prior_ids = prior.patches(limits.codebook_size)?;
        let patch_grid = [token_rows, token_columns].map(|tokens| tokens * PATCHES_PER_TOKEN);
        let image_tokens = patch_grid[0].checked_mul(patch_grid[1]).ok_or_else(|| {
            ModelError::request("height", "and width make more patches than 32 bits hold")
        })?;
        let schedule = scheduler.schedule(image_tokens, self.steps)?;
        Ok(Plan {
            patch_grid: patch_grid.map(i64::from),
            prior_ids,
            schedule,
        })
    }
}

fn tokens_along(field: &'static str, pixels: u32, limits: &Limits) -> Result<u32> {
    let multiple = limits.side_multiple();
    if pixels == 0 || !pixels.is_multiple_of(multiple) {
        return Err(ModelError::request(
            field,
            format!("is {pixels}, need a positive multiple of {multiple}"),
        ));
    }
    Ok(pixels.div_euclid(multiple))
}

impl PriorGrid<'_> {
    /// The id of each patch, row-major: every token doubled in both directions.
    fn patches(&self, codebook_size: u32) -> Result<Vec<i64>> {
        let columns = self.w as usize;
        if Some(self.ids.len()) != columns.checked_mul(self.h as usize) {
            let problem = format!("has {} ids, need {} x {}", self.ids.len(), self.h, self.w);
            return Err(ModelError::request("prior", problem));
        }
        if let Some(id) = self.ids.iter().find(|id| u32::from(**id) >= codebook_size) {
            let problem = format!("holds id {id}, need ids below {codebook_size}");
            return Err(ModelError::request("prior", problem));
        }
        let factor = PATCHES_PER_TOKEN as usize;
        let mut patches = Vec::with_capacity(self.ids.len() * factor * factor);
        for row in self.ids.chunks_exact(columns) {
            for _ in 0..factor {
                patches.extend(
                    row.iter()
                        .flat_map(|id| std::iter::repeat_n(i64::from(*id), factor)),
                );
            }
        }
        Ok(patches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        patch_pixels: 16,
        codebook_size: 512,
        steps_max: 1000,
    };

    fn request<'a>(height: u32, width: u32, prior: PriorGrid<'a>) -> PaintRequest<'a> {
        PaintRequest {
            prompt: "",
            height,
            width,
            seed: 0,
            steps: 2,
            guidance_scale: 1.5,
            prior,
        }
    }

    fn plan(request: &PaintRequest<'_>) -> Result<Plan> {
        request.plan(&LIMITS, &SchedulerConfig::published())
    }

    #[test]
    fn each_token_covers_two_by_two_patches() {
        let prior = PriorGrid {
            h: 2,
            w: 3,
            ids: &[1, 2, 3, 4, 5, 6],
        };

        let plan = plan(&request(64, 96, prior)).unwrap();

        assert_eq!(plan.patch_grid, [4, 6]);
        let (upper, lower) = ([1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6]);
        assert_eq!(plan.prior_ids, [upper, upper, lower, lower].concat());
        assert_eq!(plan.schedule.iter().count(), 2);
    }

    #[test]
    fn requests_that_cannot_be_painted_name_their_field() {
        let prior = PriorGrid {
            h: 1,
            w: 1,
            ids: &[511],
        };
        let good = request(32, 32, prior);
        plan(&good).unwrap();
        let bad = [
            ("height", PaintRequest { height: 0, ..good }),
            ("height", PaintRequest { height: 48, ..good }),
            ("width", PaintRequest { width: 33, ..good }),
            ("prior", PaintRequest { width: 64, ..good }),
            (
                "prior",
                PaintRequest {
                    prior: PriorGrid {
                        ids: &[1, 2],
                        ..prior
                    },
                    ..good
                },
            ),
            (
                "prior",
                PaintRequest {
                    prior: PriorGrid { ids: &[], ..prior },
                    ..good
                },
            ),
            (
                "prior",
                PaintRequest {
                    prior: PriorGrid {
                        ids: &[512],
                        ..prior
                    },
                    ..good
                },
            ),
            (
                "guidance_scale",
                PaintRequest {
                    guidance_scale: f64::NAN,
                    ..good
                },
            ),
            ("steps", PaintRequest { steps: 0, ..good }),
            (
                "steps",
                PaintRequest {
                    steps: 1001,
                    ..good
                },
            ),
        ];
        for (expected, request) in bad {
            let error = plan(&request).unwrap_err();
            assert!(
                matches!(error, ModelError::Request { field, .. } if field == expected),
                "{error}"
            );
        }
    }
}
