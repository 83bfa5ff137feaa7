//! How an output ended. The first stored result of an output is its result: the stream refuses a second one.

use serde::{Deserialize, Serialize};

use crate::{
    ImageFormat, ImageSize, JobError, Message, OutputId, PriorId, PriorUsage, Seed, UnixMillis,
    WorkerId,
};

/// The finished picture.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncodedImage {
    /// Of `bytes`.
    pub format: ImageFormat,
    /// In pixels.
    pub size: ImageSize,
    /// The file, at most [`crate::limits::IMAGE_BYTES_MAX`].
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

/// Prints the number of bytes, never the bytes.
impl std::fmt::Debug for EncodedImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "EncodedImage({} {}, {} bytes)",
            self.format,
            self.size,
            self.bytes.len()
        )
    }
}

/// Where an output's time went, as instants; waits and runs are their differences.
///
/// An output that failed early lacks the later instants.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputTimings {
    /// The gateway accepted the job.
    pub accepted_at: UnixMillis,
    /// The AR engine started on it.
    pub ar_started_at: Option<UnixMillis>,
    /// The AR engine was done with it.
    pub ar_finished_at: Option<UnixMillis>,
    /// A denoiser started on it.
    pub denoise_started_at: Option<UnixMillis>,
    /// The last denoising step was done.
    pub denoise_finished_at: Option<UnixMillis>,
    /// Its picture was decoded and encoded, or it failed.
    pub finished_at: UnixMillis,
}

/// The one answer of one output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutputResult {
    /// The output.
    pub output: OutputId,
    /// The picture, or why there is none.
    pub outcome: Result<EncodedImage, JobError>,
    /// The seed it was painted with; absent when the request was not known to whoever ended it.
    pub seed: Option<Seed>,
    /// What the AR stage used; absent when it did not get that far.
    pub usage: Option<PriorUsage>,
    /// Under which name its prior tokens are stored for variations; absent when they are not.
    pub prior_id: Option<PriorId>,
    /// Where the time went.
    pub timings: OutputTimings,
    /// Who stored this result; absent when a gateway ended the output.
    pub worker: Option<WorkerId>,
}

impl Message for OutputResult {
    const KIND: &'static str = "output_result";
    /// Version 1 had no `prior_id`, and its usage no `cached`.
    const VERSION: u16 = 2;
}
