//! What leaves the AR stage: one denoise message per output, or its error as its result.

use std::time::Duration;

use messaging::{Bus, Fence, PublishError};
use protocol::{ErrorCode, JobError, OutputId, OutputResult, OutputTimings, Seed, UnixMillis};
use service::{clock::unix_millis, exit::chain};

use crate::{
    engine::RowOutcome,
    request::{BatchTimes, Held},
};

/// Between two tries to store what the broker did not take. Each try has its own retries; this only keeps a full
/// stream from being hammered, and being stuck here is the back-pressure that stops the batcher from taking more.
pub(crate) const STORE_PAUSE: Duration = Duration::from_secs(1);

/// Stores `output`'s denoise message or its error, however long the broker takes.
pub(crate) async fn store(
    bus: &Bus,
    held: &Held,
    output: OutputId,
    outcome: RowOutcome,
    times: BatchTimes,
) {
    let (error, seed) = match outcome {
        Err(error) => (error, None),
        Ok(prior) => match held.denoise_job(output, prior, times) {
            None => (
                JobError::new(ErrorCode::Internal, "a row of no request"),
                None,
            ),
            Some(job) => loop {
                match bus.publish_denoise_job(held.class, &job).await {
                    Ok(()) => return,
                    Err(error @ (PublishError::TooLarge { .. } | PublishError::Encode(_))) => {
                        break (
                            JobError::new(ErrorCode::Internal, &chain(&error)),
                            Some(job.seed),
                        );
                    }
                    Err(error) => pause(output, &error).await,
                }
            },
        },
    };
    let seed = seed.or_else(|| held.prior_row(output).map(|row| row.seed));
    answer(bus, &failure(output, seed, held.accepted_at(), error)).await;
}

/// Stores an output's error as its result, however long the broker takes.
pub(crate) async fn answer(bus: &Bus, result: &OutputResult) {
    loop {
        match bus.put_result(result).await {
            Ok(Fence::First) => return,
            Ok(Fence::Taken) => {
                return tracing::info!(output = %result.output, "another result was first");
            }
            Err(error) => pause(result.output, &error).await,
        }
    }
}

async fn pause(output: OutputId, error: &PublishError) {
    tracing::warn!(%output, error = %chain(error), "not stored, trying again");
    tokio::time::sleep(STORE_PAUSE).await;
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
        timings,
        worker: None,
    }
}
