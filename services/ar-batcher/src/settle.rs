//! What leaves the AR stage: one denoise message per output, or its error as its result. Run in tasks: the driver
//! waits for no broker.

use std::time::Duration;

use batching::{Start, is_retried, may_start};
use messaging::{BusError, KnownLife, PublishError};
use protocol::{
    ErrorCode, JobError, LifeEvent, OutputId, OutputResult, OutputTimings, Seed, UnixMillis,
    WorkStage,
};
use service::{clock::unix_millis, exit::chain};

use crate::{
    batch::RowEnd,
    bench::Bench,
    prior_cache::NamedPrior,
    request::{BatchTimes, Made, Request},
};

/// Between two tries to store what the broker did not take. Each try has its own retries; this only keeps a full
/// stream from being hammered, and what is stuck here counts among what the batcher has in hand.
pub(crate) const STORE_PAUSE: Duration = Duration::from_secs(1);

/// How long a message rests that this batcher cannot or should not run: another one waits for work by then, or the
/// broker answers again.
pub(crate) const REST: Duration = Duration::from_millis(500);

/// What became of an output that was in a task's hands.
pub(crate) enum Fate {
    /// Its denoise message is stored; its life does not say so yet.
    FannedOut(KnownLife),
    /// It has a result.
    Answered,
    /// Its attempt failed, and it is to run again.
    Retry { known: KnownLife, suspect: bool },
    /// Its attempt did not happen, and it is to run again.
    Again(KnownLife),
    /// Another worker is to try it.
    Park,
    /// Another batcher has started on it.
    ParkForAnother,
}

/// What a row came to: fanned out, answered for, to be tried again here or elsewhere.
pub(crate) async fn settle(
    bench: &Bench,
    request: &Request,
    known: KnownLife,
    end: RowEnd,
    times: BatchTimes,
) -> Fate {
    let output = known.output();
    let NamedPrior { prior, id } = match end {
        RowEnd::Cached(named) => named,
        RowEnd::Ran(outcome, name) => {
            bench.counters.row(outcome.is_ok());
            match outcome {
                Ok(prior) => match bench.cache.as_ref().zip(name) {
                    Some((cache, name)) => cache.keep(name, prior).await,
                    None => prior.into(),
                },
                Err(error) if is_retried(error.code) => {
                    return retry(bench, request, known, error).await;
                }
                Err(error) => return refuse(bench, request, output, error).await,
            }
        }
        RowEnd::Refused => {
            bench.counters.withdrawn.inc();
            return Fate::Answered;
        }
        RowEnd::Unrecorded => return Fate::Park,
        RowEnd::Untouched => return Fate::Again(known),
        RowEnd::Stopped => return sign_off(bench, known).await,
    };
    fan_out(bench, request, known, Made { prior, id, times }).await
}

/// Stores `output`'s denoise message, however long the broker takes.
pub(crate) async fn fan_out(
    bench: &Bench,
    request: &Request,
    known: KnownLife,
    made: Made,
) -> Fate {
    let (output, made_at) = (known.output(), made.times.finished_at);
    let Some(job) = request.denoise_job(&known, made) else {
        let error = JobError::new(ErrorCode::Internal, "a row of no request");
        return refuse(bench, request, output, error).await;
    };
    let (bus, tenant) = (&bench.member.bus, request.tenant.as_ref());
    loop {
        match bus.publish_denoise_job(request.class, tenant, &job).await {
            Ok(()) => break,
            Err(error @ (PublishError::TooLarge { .. } | PublishError::Encode(_))) => {
                let error = JobError::new(ErrorCode::Internal, &chain(&error));
                return refuse(bench, request, output, error).await;
            }
            Err(error) => pause(output, &error).await,
        }
    }
    let took_ms = unix_millis().saturating_sub(made_at);
    bench.counters.stored(Duration::from_millis(took_ms));
    Fate::FannedOut(known)
}

/// Answers for an output that has no prior.
pub(crate) async fn refuse(
    bench: &Bench,
    request: &Request,
    output: OutputId,
    error: JobError,
) -> Fate {
    let seed = request.prior_row(output).map(|row| row.seed);
    let result = failure(output, seed, request.accepted_at(), error);
    bench.answer(&result).await;
    Fate::Answered
}

/// A row that failed runs again, here or elsewhere; or never.
async fn retry(bench: &Bench, request: &Request, known: KnownLife, error: JobError) -> Fate {
    let output = known.output();
    tracing::warn!(%output, code = %error.code, error = error.text, "attempt failed");
    let (stage, worker) = (WorkStage::Prior, bench.worker());
    let failed = LifeEvent::AttemptFailed {
        stage,
        worker: worker.clone(),
        error,
    };
    let now_known = async {
        let Some(known) = bench.advance(&known, failed).await? else {
            return Ok(None);
        };
        let life = known.life(request.accepted_at());
        let others = bench.others_if_tried(std::slice::from_ref(&life)).await?;
        Ok::<_, BusError>(Some((known, life, others)))
    };
    let (known, life, others) = match now_known.await {
        Ok(Some(known)) => known,
        Ok(None) => return Fate::ParkForAnother,
        // Nothing is known: it is not ours to try.
        Err(_) => return Fate::Park,
    };
    match may_start(&life, stage, &worker, others, bench.attempts_max) {
        Start::Go => Fate::Retry {
            suspect: bench.is_suspect(&life),
            known,
        },
        Start::PassOn => Fate::Park,
        Start::GiveUp => {
            bench.give_up(request, life).await;
            Fate::Answered
        }
    }
}

/// A row that was stopped although it is needed: its attempt was none.
async fn sign_off(bench: &Bench, known: KnownLife) -> Fate {
    let (stage, worker) = (WorkStage::Prior, bench.worker());
    match bench
        .advance(&known, LifeEvent::GivenBack { stage, worker })
        .await
    {
        Ok(Some(known)) => Fate::Again(known),
        Ok(None) => Fate::ParkForAnother,
        Err(_) => Fate::Park,
    }
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
