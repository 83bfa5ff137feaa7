//! What leaves the AR stage: one denoise message per output, or its error as its result.

use std::time::Duration;

use messaging::PublishError;
use protocol::{
    ErrorCode, JobError, LifeEvent, OutputId, OutputResult, OutputTimings, Seed, UnixMillis,
};
use service::{clock::unix_millis, exit::chain};

use crate::{
    bench::Bench,
    prior_cache::NamedPrior,
    request::{BatchTimes, Held},
};

/// Between two tries to store what the broker did not take. Each try has its own retries; this only keeps a full
/// stream from being hammered, and being stuck here is the back-pressure that stops the batcher from taking more.
pub(crate) const STORE_PAUSE: Duration = Duration::from_secs(1);

/// How long a message rests that this batcher cannot or should not run: another one waits for work by then, or the
/// broker answers again.
pub(crate) const REST: Duration = Duration::from_millis(500);

/// Stores `output`'s denoise message, however long the broker takes.
pub(crate) async fn fan_out(
    bench: &Bench<'_>,
    held: &Held,
    output: OutputId,
    prior: NamedPrior,
    times: BatchTimes,
) {
    let Some(job) = held.denoise_job(output, prior, times) else {
        let error = JobError::new(ErrorCode::Internal, "a row of no request");
        return refuse(bench, held, output, error).await;
    };
    loop {
        match bench.member.bus.publish_denoise_job(held.class, &job).await {
            Ok(()) => break,
            Err(error @ (PublishError::TooLarge { .. } | PublishError::Encode(_))) => {
                let error = JobError::new(ErrorCode::Internal, &chain(&error));
                return refuse(bench, held, output, error).await;
            }
            Err(error) => pause(output, &error).await,
        }
    }
    // Refused when a denoiser was faster to write that it started.
    if let Err(error) = bench.advance(output, LifeEvent::PriorStored).await {
        tracing::warn!(%output, %error, "life is not moved on");
    }
}

/// Answers for an output that has no prior.
pub(crate) async fn refuse(bench: &Bench<'_>, held: &Held, output: OutputId, error: JobError) {
    let seed = held.prior_row(output).map(|row| row.seed);
    bench
        .answer(&failure(output, seed, held.accepted_at(), error))
        .await;
}

pub(crate) async fn pause(output: OutputId, error: &PublishError) {
    tracing::warn!(%output, error = %chain(error), "not stored, trying again");
    tokio::time::sleep(STORE_PAUSE).await;
}

/// The end of an output whose time is over.
pub(crate) fn too_late() -> JobError {
    JobError::new(
        ErrorCode::DeadlineExceeded,
        "the deadline passed before the AR stage was done",
    )
}

/// The result of an output that failed before a denoiser saw it.
pub(crate) fn failure(
    output: OutputId,
    seed: Option<Seed>,
    accepted_at: UnixMillis,
    error: JobError,
) -> OutputResult {
    let timings = OutputTimings {
        accepted_at,
        finished_at: unix_millis(),
        ..OutputTimings::default()
    };
    OutputResult {
        output,
        outcome: Err(error),
        seed,
        usage: None,
        prior_id: None,
        timings,
        worker: None,
    }
}
