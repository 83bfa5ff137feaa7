//! One call of the engine, as a task of its own.

use std::{convert::Infallible, sync::Arc, time::Duration};

use batching::BatchId;
use futures::future::join_all;
use messaging::{Bus, KnownLife};
use protocol::{ImageSize, LifeEvent, OutputId, PriorId, Progress, Stage, WorkStage, trace::span};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    bench::Bench,
    engine::{BatchProgress, EngineError, PriorBatch, PriorEngine, PriorRow, RowOutcome, checked},
    prior_cache::NamedPrior,
};

/// Between two progress messages of a batch: a person's eye follows no more. A batch that ends within it tells of none.
const REPORT_PERIOD: Duration = Duration::from_millis(200);

/// A batch to run.
pub(crate) struct Batch {
    pub(crate) bench: Arc<Bench>,
    pub(crate) id: BatchId,
    pub(crate) engine: Arc<dyn PriorEngine>,
    pub(crate) size: ImageSize,
    pub(crate) rows: Vec<(PriorRow, KnownLife)>,
    /// Outputs on all engines, these included; for metrics.
    pub(crate) running: usize,
    pub(crate) stop: CancellationToken,
    /// How long the engine may say nothing.
    pub(crate) stall_max: Duration,
}

/// The engine said nothing for too long.
#[derive(Debug, thiserror::Error)]
#[error("no progress for {} s", .0.as_secs_f64())]
struct Stalled(Duration);

/// What became of a batch.
pub(crate) struct BatchEnd {
    pub(crate) id: BatchId,
    pub(crate) how: How,
    pub(crate) rows: Vec<(KnownLife, RowEnd)>,
}

/// How a batch ended.
#[derive(Debug)]
pub(crate) enum How {
    /// Its rows say more.
    Ran,
    /// The engine took none of it now. Rows that would have run read [`RowEnd::Stopped`], and are signed off.
    Full,
    /// The engine will never take anything any more.
    Gone(EngineError),
}

/// What became of a row.
pub(crate) enum RowEnd {
    /// It ran. With the name for its tokens, where they are to be stored.
    Ran(RowOutcome, Option<PriorId>),
    /// An equal one had run before.
    Cached(NamedPrior),
    /// It did not run: it is somebody else's by now.
    Refused,
    /// It did not run: its start could not be written down.
    Unrecorded,
    /// It did not run to its end, for no fault of its own.
    Stopped,
    /// It was not started: nothing is written down of it.
    Untouched,
}

impl Batch {
    /// Looks the rows up among those that have run before, writes the others' starts down, then runs them: an output
    /// that takes its batcher down must have left a trace before it does.
    pub(crate) async fn run(self) -> BatchEnd {
        let Self {
            bench,
            id,
            engine,
            size,
            rows,
            running,
            stop,
            stall_max,
        } = self;
        // Rows that turn out to need no engine take no slot of one.
        let others = running.saturating_sub(rows.len());
        let (rows, mut ends) = look_up(&bench, size, rows).await;
        let end = |how, rows| BatchEnd { id, how, rows };
        if stop.is_cancelled() {
            let untouched = |(_, known)| (known, RowEnd::Untouched);
            ends.extend(rows.into_iter().map(untouched));
            return end(How::Ran, ends);
        }
        let (rows, refused) = start(&bench, rows).await;
        ends.extend(refused);
        let (rows, lives): (Vec<PriorRow>, Vec<KnownLife>) = rows.into_iter().unzip();
        if rows.is_empty() {
            return end(How::Ran, ends);
        }
        let call = Call {
            engine,
            running: others + rows.len(),
            batch: PriorBatch { size, rows },
            stop,
            stall_max,
        };
        let stopped = |known| (known, RowEnd::Stopped);
        match call.run(&bench).await {
            Ok(outcomes) => {
                ends.extend(lives.into_iter().zip(outcomes));
                end(How::Ran, ends)
            }
            Err(EngineError::Stopped) => {
                ends.extend(lives.into_iter().map(stopped));
                end(How::Ran, ends)
            }
            Err(EngineError::Full) => {
                let signed_off = sign_off(&bench, lives).await;
                ends.extend(signed_off.into_iter().map(stopped));
                end(How::Full, ends)
            }
            Err(error) => end(How::Gone(error), ends),
        }
    }
}

/// The rows to run, and the ends of those that need no engine.
async fn look_up(
    bench: &Bench,
    size: ImageSize,
    rows: Vec<(PriorRow, KnownLife)>,
) -> (Vec<(PriorRow, KnownLife)>, Vec<(KnownLife, RowEnd)>) {
    let Some(cache) = &bench.cache else {
        return (rows, Vec::new());
    };
    let found = cache.lookup(rows.iter().map(|(row, _)| row), size).await;
    let (mut run, mut ends) = (Vec::new(), Vec::new());
    for ((row, known), found) in rows.into_iter().zip(found) {
        match found {
            Some(prior) => ends.push((known, RowEnd::Cached(prior))),
            None => run.push((row, known)),
        }
    }
    (run, ends)
}

/// Writes the starts down. The rows to run, and the ends of the others.
async fn start(
    bench: &Bench,
    rows: Vec<(PriorRow, KnownLife)>,
) -> (Vec<(PriorRow, KnownLife)>, Vec<(KnownLife, RowEnd)>) {
    let started = join_all(rows.iter().map(|(_, known)| {
        let (stage, worker) = (WorkStage::Prior, bench.worker());
        bench.advance(known, LifeEvent::Started { stage, worker })
    }))
    .await;
    let (mut run, mut ends) = (Vec::new(), Vec::new());
    for ((row, before), started) in rows.into_iter().zip(started) {
        match started {
            Ok(Some(known)) => run.push((row, known)),
            Ok(None) => ends.push((before, RowEnd::Refused)),
            Err(error) => {
                tracing::warn!(output = %row.output, %error, "start is not written down");
                ends.push((before, RowEnd::Unrecorded));
            }
        }
    }
    (run, ends)
}

/// The lives after the engine took none of them. One that cannot be signed off keeps its open attempt, which is this
/// worker's own and counts for nothing while it is here.
async fn sign_off(bench: &Bench, lives: Vec<KnownLife>) -> Vec<KnownLife> {
    let signed_off = lives.into_iter().map(async |known| {
        let (stage, worker) = (WorkStage::Prior, bench.worker());
        let given_back = LifeEvent::GivenBack { stage, worker };
        match bench.advance(&known, given_back).await {
            Ok(Some(known)) => known,
            Ok(None) | Err(_) => known,
        }
    });
    join_all(signed_off).await
}

/// A call of an engine.
struct Call {
    engine: Arc<dyn PriorEngine>,
    batch: PriorBatch,
    running: usize,
    stop: CancellationToken,
    stall_max: Duration,
}

impl Call {
    async fn run(self, bench: &Bench) -> Result<Vec<RowEnd>, EngineError> {
        let Self {
            engine,
            batch,
            running,
            stop,
            stall_max,
        } = self;
        if stop.is_cancelled() {
            return Err(EngineError::Stopped);
        }
        let names = match &bench.cache {
            Some(cache) => cache.names(&batch).into_iter().map(Some).collect(),
            None => vec![None; batch.rows.len()],
        };
        let size = batch.size;
        let outputs: Vec<OutputId> = batch.rows.iter().map(|row| row.output).collect();
        let (progress, watched) = watch::channel(BatchProgress::default());
        let silence = stalled(watched.clone(), stall_max);
        let span = tracing::debug_span!(span::AR_ENGINE);
        // In the span already here: an engine may start before it is waited for.
        let call = span.in_scope(|| engine.run(batch, progress, stop));
        let call = call.instrument(span);
        let outcomes = tokio::select! {
            outcomes = call => outcomes,
            () = silence => Err(EngineError::Gone(Stalled(stall_max).into())),
            never = report(&bench.member.bus, &outputs, watched) => match never {},
        };
        // One that is full took none of it, and is asked again in a moment.
        if !matches!(outcomes, Err(EngineError::Full)) {
            bench.called(outputs.len(), running);
        }
        let outcomes = checked(size, outputs.len(), outcomes?, engine.codebook_size());
        let ran = |(outcome, name)| RowEnd::Ran(outcome, name);
        Ok(outcomes.into_iter().zip(names).map(ran).collect())
    }
}

/// Returns when the engine has said nothing for `stall_max`. A batch that was told to stop counts as well.
async fn stalled(mut progress: watch::Receiver<BatchProgress>, stall_max: Duration) {
    while let Ok(changed) = timeout(stall_max, progress.changed()).await {
        if changed.is_err() {
            // The batch has ended, and is about to say how.
            return sleep(stall_max).await;
        }
    }
}

/// Tells every output of the batch how far it is; ends never, so that the engine decides when the batch is done.
async fn report(
    bus: &Bus,
    outputs: &[OutputId],
    mut watched: watch::Receiver<BatchProgress>,
) -> Infallible {
    while watched.changed().await.is_ok() {
        sleep(REPORT_PERIOD).await;
        let BatchProgress { tokens, tokens_max } = *watched.borrow_and_update();
        for output in outputs {
            let progress = Progress {
                output: *output,
                stage: Stage::Prior,
                step: tokens,
                steps: tokens_max,
            };
            bus.report_progress(&progress).await;
        }
    }
    std::future::pending().await
}
