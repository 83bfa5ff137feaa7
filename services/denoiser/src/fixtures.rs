//! The job that unit tests start from.

use protocol::{
    DenoiseJob, DenoiseParameters, ImageFormat, ImageSize, JobId, OutputIndex, PriorTokens,
    PriorUsage, Seed,
};

/// A picture of 32 x 32 in so many steps, due at 1.
pub(crate) fn job(prompt: &str, steps: u16) -> DenoiseJob {
    DenoiseJob {
        output: JobId::from_u128(1).output(OutputIndex::FIRST),
        prompt: prompt.into(),
        seed: Seed::new(7).expect("small"),
        size: ImageSize::new(32, 32).expect("multiples of 32"),
        format: ImageFormat::Png,
        denoise: DenoiseParameters::new(steps, 1.5).expect("in range"),
        prior: PriorTokens::new(1, 1, vec![3]).expect("fills the grid"),
        usage: PriorUsage {
            prompt_tokens: 1,
            generated_tokens: 1,
            cached: false,
        },
        prior_id: None,
        life: None,
        accepted_at: 0,
        ar_started_at: 0,
        ar_finished_at: 0,
        deadline_at: 1,
    }
}
