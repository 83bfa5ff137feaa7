//! How far an output has come. Best effort: published without storage, a lost one is superseded by the next.

use serde::{Deserialize, Serialize};

use crate::{Message, OutputId};

/// What is being done for an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The AR engine writes prior tokens; steps are tokens.
    Prior,
    /// The denoiser paints; steps are denoising steps.
    Denoise,
    /// Latents become a picture file.
    Decode,
}

/// One step forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// Whose.
    pub output: OutputId,
    /// In which stage.
    pub stage: Stage,
    /// Steps done.
    pub step: u32,
    /// Steps of the stage in all.
    pub steps: u32,
}

impl Message for Progress {
    const KIND: &'static str = "progress";
    const VERSION: u16 = 1;
}
