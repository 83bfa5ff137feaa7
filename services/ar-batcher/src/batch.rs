//! One batch on the engine, as a task of its own: it runs on while the driver stores the last one's outputs.

use std::{convert::Infallible, sync::Arc, time::Duration};

use futures::future::join_all;
use messaging::Bus;
use protocol::{LifeEvent, OutputId, Progress, Stage, WorkStage, WorkerId};
use service::clock::unix_millis;
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    counters::Counters,
    engine::{BatchProgress, EngineError, PriorBatch, PriorEngine, RowOutcome, checked},
    prior_cache::{NamedOutcome, NamedPrior, PriorCache},
};

/// Between two progress messages of a batch: a person's eye follows no more.
const REPORT_PERIOD: Duration = Duration::from_millis(200);

/// How a batch is run.
pub(crate) struct Batch {
    pub(crate) bus: Bus,
    pub(crate) engine: Arc<dyn PriorEngine>,
    pub(crate) worker: WorkerId,
    /// None when it is turned off.
    pub(crate) cache: Option<PriorCache>,
    pub(crate) counters: Counters,
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
    Ran(NamedOutcome),
    /// It did not have to run.
    Cached(NamedPrior),
    /// It did not run: it is somebody else's by now.
    Refused,
    /// It did not run: its start could not be written down.
    Unrecorded,
}

impl Batch {
    /// Looks the rows up among those that ran before, writes the others' starts down, then runs them: an output that
    /// takes its batcher down must have left a trace before it does.
    pub(crate) async fn run(
        self,
        batch: PriorBatch,
    ) -> Result<Vec<(OutputId, RowEnd)>, EngineError> {
        let (hits, batch) = match &self.cache {
            Some(cache) => cache.lookup(batch).await,
            None => (Vec::new(), batch),
        };
        let hits = hits.into_iter();
        let mut ends: Vec<_> = hits
            .map(|(output, prior)| (output, RowEnd::Cached(prior)))
            .collect();
        let batch = self.started(batch, &mut ends).await;
        if batch.rows.is_empty() {
            return Ok(ends);
        }
        if self.stop.is_cancelled() {
            return Err(EngineError::Stopped);
        }
        let outputs: Vec<OutputId> = batch.rows.iter().map(|row| row.output).collect();
        let names = self.cache.as_ref().map(|cache| cache.names(&batch));
        let outcomes = self.call(batch, &outputs).await?;
        let outcomes = match self.cache.as_ref().zip(names) {
            Some((cache, names)) => cache.store(names, outcomes).await,
            None => outcomes
                .into_iter()
                .map(|outcome| outcome.map(NamedPrior::from))
                .collect(),
        };
        let ran = outputs
            .into_iter()
            .zip(outcomes.into_iter().map(RowEnd::Ran));
        ends.extend(ran);
        Ok(ends)
    }

    /// Those of the rows that may run, their starts written down; what became of the others goes to `ends`.
    async fn started(
        &self,
        PriorBatch { size, rows }: PriorBatch,
        ends: &mut Vec<(OutputId, RowEnd)>,
    ) -> PriorBatch {
        let started = join_all(rows.iter().map(|row| {
            let (stage, worker) = (WorkStage::Prior, self.worker.clone());
            let event = LifeEvent::Started { stage, worker };
            self.bus.advance(row.output, event, unix_millis())
        }))
        .await;
        let mut run = Vec::new();
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
        PriorBatch { size, rows: run }
    }

    /// The engine's answer, held to what every answer is held to.
    async fn call(
        &self,
        batch: PriorBatch,
        outputs: &[OutputId],
    ) -> Result<Vec<RowOutcome>, EngineError> {
        self.counters.started(outputs.len());
        let size = batch.size;
        let (progress, watched) = watch::channel(BatchProgress::default());
        let silence = stalled(watched.clone(), self.stall_max);
        let call = self.engine.run(batch, progress, self.stop.clone());
        let outcomes = tokio::select! {
            outcomes = call => outcomes?,
            () = silence => return Err(EngineError::Gone(Stalled(self.stall_max).into())),
            never = report(&self.bus, outputs, watched) => match never {},
        };
        let codebook_size = self.engine.codebook_size();
        Ok(checked(size, outputs.len(), outcomes, codebook_size))
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
