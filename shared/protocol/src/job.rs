//! A job's way to its pictures: the record of what was accepted, the AR message, one denoise message per output.

use serde::{Deserialize, Serialize};

use crate::{
    DenoiseParameters, ImageFormat, ImageSize, JobId, Message, OutputId, OutputIndex, OutputLife,
    PriorId, PriorTokens, PriorUsage, Seed, StoredPrior, Tenant, TraceId, UnixMillis,
};

/// One picture of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputRequest {
    /// Which output.
    pub index: OutputIndex,
    /// The request's seed plus the index.
    pub seed: Seed,
}

/// What was accepted, kept for as long as the job's results can be fetched. Any gateway answers from it. Carries
/// no prompt: nobody who reads it needs one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRecord {
    /// The job.
    pub job: JobId,
    /// Its outputs, in order.
    pub outputs: Vec<OutputRequest>,
    /// Of every output.
    pub size: ImageSize,
    /// Of every output.
    pub format: ImageFormat,
    /// Of every output.
    pub denoise: DenoiseParameters,
    /// When the gateway accepted it.
    pub accepted_at: UnixMillis,
    /// When it ends with `deadline_exceeded` if it has not ended before.
    pub deadline_at: UnixMillis,
    /// Whose it is, where a deployment tells its clients apart: nobody else is told of it.
    #[serde(default)]
    pub tenant: Option<Tenant>,
    /// The trace that it was accepted in.
    #[serde(default)]
    pub trace_id: Option<TraceId>,
}

impl Message for JobRecord {
    const KIND: &'static str = "job_record";
    /// Version 1 had neither `tenant` nor `trace_id`.
    const VERSION: u16 = 2;
    const OLDEST: u16 = 1;
}

/// One request on its way to the AR stage.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArJob {
    /// The job.
    pub job: JobId,
    /// As the client wrote it; never logged.
    pub prompt: String,
    /// Its outputs, in order.
    pub outputs: Vec<OutputRequest>,
    /// Of every output.
    pub size: ImageSize,
    /// Of every output.
    pub format: ImageFormat,
    /// Of every output; travels on to the denoisers.
    pub denoise: DenoiseParameters,
    /// Prior tokens that the client chose: the AR model has nothing to do for it.
    pub prior: Option<StoredPrior>,
    /// When the gateway accepted it.
    pub accepted_at: UnixMillis,
    /// No stage starts work on it after this.
    pub deadline_at: UnixMillis,
}

impl Message for ArJob {
    const KIND: &'static str = "ar_job";
    /// Version 1 had no `prior`.
    const VERSION: u16 = 2;
}

/// Leaves the prompt out.
impl std::fmt::Debug for ArJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArJob")
            .field("job", &self.job)
            .field("size", &self.size)
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

/// One output on its way to a denoiser: everything it needs, so that a retry never goes back to the AR stage.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenoiseJob {
    /// The output.
    pub output: OutputId,
    /// As the client wrote it: the glyph encoder reads the quoted texts out of it. Never logged.
    pub prompt: String,
    /// Seed of the initial latents.
    pub seed: Seed,
    /// In pixels.
    pub size: ImageSize,
    /// How the picture is encoded.
    pub format: ImageFormat,
    /// Steps and guidance.
    pub denoise: DenoiseParameters,
    /// From the AR stage, fitting `size`.
    pub prior: PriorTokens,
    /// What the AR stage used.
    pub usage: PriorUsage,
    /// Under which name `prior` is stored for variations; absent when it is not.
    pub prior_id: Option<PriorId>,
    /// What the output has been through, as the AR stage knows; absent where it has written nothing.
    pub life: Option<StoredLife>,
    /// When the gateway accepted the job.
    pub accepted_at: UnixMillis,
    /// When the AR engine started on this output's batch.
    pub ar_started_at: UnixMillis,
    /// When the AR engine was done with it.
    pub ar_finished_at: UnixMillis,
    /// No stage starts work on it after this.
    pub deadline_at: UnixMillis,
}

impl Message for DenoiseJob {
    const KIND: &'static str = "denoise_job";
    /// Version 1 had neither `prior_id` nor `life`, and its usage no `cached`.
    const VERSION: u16 = 2;
}

/// A life and its place in the bucket, as the sender of a message left it: the receiver writes its start after it, and
/// need not ask for it first. It may be out of date by then, which the server tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredLife {
    /// What it says.
    pub life: OutputLife,
    /// The sequence of its message in the bucket's stream.
    pub sequence: u64,
}

/// Leaves the prompt out.
impl std::fmt::Debug for DenoiseJob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DenoiseJob")
            .field("output", &self.output)
            .field("size", &self.size)
            .field("denoise", &self.denoise)
            .field("prior", &self.prior)
            .finish_non_exhaustive()
    }
}
