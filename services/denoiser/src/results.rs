//! How an output ends, as the message that says so.

use protocol::{
    DenoiseJob, EncodedImage, ErrorCode, JobError, OutputId, OutputResult, OutputTimings,
    UnixMillis, WorkerId, decode,
};
use service::clock::unix_millis;

/// When this worker's own stages began and ended.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Instants {
    pub(crate) started_at: Option<UnixMillis>,
    pub(crate) denoised_at: Option<UnixMillis>,
}

/// The job in a message, or why it cannot be read.
pub(crate) fn read(output: OutputId, payload: &[u8]) -> Result<DenoiseJob, JobError> {
    let job = decode::<DenoiseJob>(payload)
        .map_err(|error| JobError::new(ErrorCode::MessageInvalid, &error.to_string()))?;
    let life_of = job.life.as_ref().map(|stored| stored.life.output);
    if job.output == output && life_of.is_none_or(|life_of| life_of == output) {
        Ok(job)
    } else {
        Err(JobError::new(
            ErrorCode::MessageInvalid,
            "denoise message names another output",
        ))
    }
}

/// The result of `job`.
pub(crate) fn result(
    worker: &WorkerId,
    job: &DenoiseJob,
    outcome: Result<EncodedImage, JobError>,
    instants: Instants,
) -> OutputResult {
    OutputResult {
        output: job.output,
        outcome,
        seed: Some(job.seed),
        usage: Some(job.usage),
        prior_id: job.prior_id,
        timings: OutputTimings {
            accepted_at: job.accepted_at,
            ar_started_at: Some(job.ar_started_at),
            ar_finished_at: Some(job.ar_finished_at),
            denoise_started_at: instants.started_at,
            denoise_finished_at: instants.denoised_at,
            finished_at: unix_millis(),
        },
        worker: Some(worker.clone()),
    }
}

/// The result of a message that cannot be read: its subject is all that is known of it.
pub(crate) fn unreadable(output: OutputId, error: JobError) -> OutputResult {
    let now = unix_millis();
    OutputResult {
        output,
        outcome: Err(error),
        seed: None,
        usage: None,
        prior_id: None,
        timings: OutputTimings {
            accepted_at: now,
            finished_at: now,
            ..OutputTimings::default()
        },
        worker: None,
    }
}
