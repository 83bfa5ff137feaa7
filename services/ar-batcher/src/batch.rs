//! One batch on the engine, as a task of its own: it runs on while the driver stores the last one's outputs.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::future::join_all;
use messaging::Bus;
use protocol::{LifeEvent, OutputId, Progress, Stage, WorkStage, WorkerId};
use service::clock::unix_millis;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::engine::{BatchProgress, EngineError, PriorBatch, PriorEngine, RowOutcome, checked};

/// Between two progress messages of a batch: a person's eye follows no more.
const REPORT_PERIOD: Duration = Duration::from_millis(200);

/// A batch to run.
pub(crate) struct Batch {
    pub(crate) bus: Bus,
    pub(crate) engine: Arc<dyn PriorEngine>,
    pub(crate) worker: WorkerId,
    pub(crate) batch: PriorBatch,
    pub(crate) stop: CancellationToken,
    /// How long the engine may say nothing.
    pub(crate) stall_max: Duration,
}

/// The engine said nothing for too long.
#[derive(Debug, thiserror::Error)]
#[error("no progress for {} s", .0.as_secs_f64())]
struct Stalled(Duration);

/// What became of a row.
pub(crate) enum RowEnd {
    /// It ran.
    Ran(RowOutcome),
    /// It did not run: it is somebody else's by now.
    Refused,
    /// It did not run: its start could not be written down.
    Unrecorded,
}

impl Batch {
    /// Writes the rows' starts down, then runs them: an output that takes its batcher down must have left a trace
    /// before it does.
    pub(crate) async fn run(self) -> Result<Vec<(OutputId, RowEnd)>, EngineError> {
        let Self {
            bus,
            engine,
            worker,
            batch: PriorBatch { size, rows },
            stop,
            stall_max,
        } = self;
        let started = join_all(rows.iter().map(|row| {
            let (stage, worker) = (WorkStage::Prior, worker.clone());
            let event = LifeEvent::Started { stage, worker };
            bus.advance(row.output, event, unix_millis())
        }))
        .await;
        let (mut ends, mut run) = (Vec::new(), Vec::new());
        for (row, started) in rows.into_iter().zip(started) {
            match started {
                Ok(Ok(_)) => run.push(row),
                Ok(Err(_)) => ends.push((row.output, RowEnd::Refused)),
                Err(error) => {
                    tracing::warn!(output = %row.output, %error, "start is not written down");
                    ends.push((row.output, RowEnd::Unrecorded));
                }
            }
        }
        if run.is_empty() {
            return Ok(ends);
        }
        if stop.is_cancelled() {
            return Err(EngineError::Stopped);
        }
        let outputs: Vec<OutputId> = run.iter().map(|row| row.output).collect();
        let (progress, watched) = watch::channel(BatchProgress::default());
        let silence = stalled(watched.clone(), stall_max);
        let call = engine.run(PriorBatch { size, rows: run }, progress, stop);
        let outcomes = tokio::select! {
            outcomes = call => outcomes?,
            () = silence => return Err(EngineError::Gone(Stalled(stall_max).into())),
            never = report(&bus, &outputs, watched) => match never {},
        };
        let outcomes = checked(size, outputs.len(), outcomes, engine.codebook_size());
        let ran = outputs
            .into_iter()
            .zip(outcomes.into_iter().map(RowEnd::Ran));
        ends.extend(ran);
        Ok(ends)
    }
}

/// Returns when the engine has said nothing for `stall_max`. A batch that was told to stop counts as well.
async fn stalled(mut progress: watch::Receiver<BatchProgress>, stall_max: Duration) {
    while let Ok(changed) = timeout(stall_max, progress.changed()).await {
        if changed.is_err() {
            // The batch has ended, and says how.
            std::future::pending::<()>().await;
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
        tokio::time::sleep(REPORT_PERIOD).await;
    }
    std::future::pending().await
}
