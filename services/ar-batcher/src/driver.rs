//! The loop: select an event, let `batching` decide, carry the action out. No rule lives here.
//!
//! A request's message is acked only when every output of it is stored as a denoise message or as a result. Until
//! then it is ours by progress acks, and a batcher's death gives it to another, where the outputs already stored
//! are recognised by their message ids and results.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use batching::{Action, BatchFormer, Event, Row};
use futures::future::BoxFuture;
use messaging::{Bus, Delivery, Membership, WorkQueue};
use protocol::{CurrentWork, JobId, OutputId, Progress, Stage, Subject, WorkerState};
use service::clock::unix_millis;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    admit,
    counters::Counters,
    engine::{BatchProgress, EngineError, PriorBatch, PriorEngine, RowOutcome, checked},
    request::{BatchTimes, Held},
    settle,
};

/// Between two progress messages of a batch: a person's eye follows no more.
const REPORT_PERIOD: Duration = Duration::from_millis(200);

/// What the driver works with.
pub(crate) struct Parts<'a> {
    pub(crate) member: &'a Membership,
    pub(crate) engine: Arc<dyn PriorEngine>,
    pub(crate) counters: Counters,
    pub(crate) stop: CancellationToken,
}

/// A batch on the engine.
struct Running {
    rows: Vec<Row>,
    started_at: u64,
    outcomes: BoxFuture<'static, Result<Vec<RowOutcome>, EngineError>>,
}

pub(crate) struct Driver<'a> {
    parts: Parts<'a>,
    former: BatchFormer,
    /// Bounded: the former wants no more once a batch is waiting.
    held: HashMap<JobId, Held>,
    running: Option<Running>,
    wake_at: Option<Instant>,
}

impl<'a> Driver<'a> {
    pub(crate) fn new(parts: Parts<'a>, former: BatchFormer) -> Self {
        Self {
            parts,
            former,
            held: HashMap::new(),
            running: None,
            wake_at: None,
        }
    }

    /// Runs until told to stop; an error means that the engine is gone. Either way what is held goes back.
    pub(crate) async fn run(mut self, mut queue: WorkQueue) -> Result<(), EngineError> {
        let stop = self.parts.stop.clone();
        let outcome = stop.run_until_cancelled(self.drive(&mut queue)).await;
        self.show(WorkerState::Draining, Vec::new());
        // Dropped leases go back to the queue at once; `close` waits until the broker has heard.
        self.held.clear();
        queue.close().await;
        match outcome {
            // The device saw the token first.
            None | Some(Err(EngineError::Stopped)) => Ok(()),
            Some(outcome) => outcome,
        }
    }

    async fn drive(&mut self, queue: &mut WorkQueue) -> Result<(), EngineError> {
        loop {
            tokio::select! {
                outcomes = running(&mut self.running) => self.finished(outcomes?).await,
                delivery = queue.next(), if self.former.wants_more() => self.arrived(delivery).await,
                () = sleep_until(self.wake_at) => self.apply(Event::Woken),
            }
        }
    }

    fn show(&self, state: WorkerState, held: Vec<CurrentWork>) {
        self.parts
            .member
            .presence
            .update(|now| (now.state, now.held) = (state, held));
    }

    async fn arrived(&mut self, delivery: Delivery) {
        if let Subject::Ar(_, job) = delivery.subject
            && self.held.contains_key(&job)
        {
            // Stored twice: the broker remembers message ids for a while only, and not over every restart.
            tracing::info!(%job, "another message of a held request, acking it");
            return delivery.lease.ack().await;
        }
        let span = delivery.span();
        if let Some((job, held)) = admit::admit(&self.parts.member.bus, delivery)
            .instrument(span)
            .await
        {
            let rows = held.rows();
            self.held.insert(job, held);
            self.apply(Event::Arrived(rows));
        }
    }

    fn apply(&mut self, event: Event) {
        self.wake_at = None;
        match self.former.apply(event, Instant::now().into_std()) {
            None => {}
            Some(Action::WakeAt(at)) => self.wake_at = Some(Instant::from_std(at)),
            Some(Action::Run(rows)) => self.start(rows),
        }
    }

    fn start(&mut self, rows: Vec<Row>) {
        let held = |row: &Row| self.held.get(&row.output.job);
        let prior_rows: Vec<_> = rows
            .iter()
            .filter_map(|row| held(row)?.prior_row(row.output))
            .collect();
        let (Some(first), true) = (rows.first().copied(), prior_rows.len() == rows.len()) else {
            unreachable!("a batch has rows, and rows wait only while their request is held");
        };
        let current = held(&first).map(|held| CurrentWork {
            output: first.output,
            ack_subject: held.lease.ack_subject(),
            since: unix_millis(),
        });
        self.show(WorkerState::Busy, current.into_iter().collect());
        self.parts.counters.started(rows.len());

        // The batch is one span; it follows from every request in it.
        let span = tracing::info_span!("ar batch", rows = rows.len(), size = %first.size);
        for row in &rows {
            if let Some(held) = held(row) {
                span.follows_from(&held.span);
            }
        }
        tracing::debug!(parent: &span, "batch started");
        let outputs: Vec<_> = rows.iter().map(|row| row.output).collect();
        let (progress, watched) = watch::channel(BatchProgress::default());
        let batch = PriorBatch {
            size: first.size,
            rows: prior_rows,
        };
        let call = self
            .parts
            .engine
            .run(batch, progress, self.parts.stop.clone());
        let bus = self.parts.member.bus.clone();
        let outcomes = async move {
            tokio::select! {
                outcomes = call => outcomes,
                never = report(bus, outputs, watched) => match never {},
            }
        };
        let outcomes = Box::pin(outcomes.instrument(span));
        self.running = Some(Running {
            rows,
            started_at: unix_millis(),
            outcomes,
        });
    }

    /// The next batch is on the device before this one's outputs are stored. When the broker takes longer than that
    /// batch, the engine waits: the back-pressure that keeps a batcher from running ahead of a full queue.
    async fn finished(&mut self, outcomes: Vec<RowOutcome>) {
        let Some(Running {
            rows, started_at, ..
        }) = self.running.take()
        else {
            return;
        };
        self.show(WorkerState::Idle, Vec::new());
        let times = BatchTimes {
            started_at,
            finished_at: unix_millis(),
        };
        let size = rows[0].size;
        let outcomes = checked(
            size,
            rows.len(),
            outcomes,
            self.parts.engine.codebook_size(),
        );
        self.apply(Event::Finished);
        for (row, outcome) in rows.into_iter().zip(outcomes) {
            self.settle(row.output, outcome, times).await;
        }
    }

    async fn settle(&mut self, output: OutputId, outcome: RowOutcome, times: BatchTimes) {
        let Some(held) = self.held.get_mut(&output.job) else {
            return;
        };
        self.parts.counters.row(outcome.is_ok());
        let span = held.span.clone();
        settle::store(&self.parts.member.bus, held, output, outcome, times)
            .instrument(span)
            .await;
        if held.settle(output)
            && let Some(held) = self.held.remove(&output.job)
        {
            held.lease.ack().await;
        }
    }
}

/// The running batch's outcomes; waits for ever when none runs. The batch stays in its place until it is done, so
/// that a dropped wait loses nothing.
async fn running(running: &mut Option<Running>) -> Result<Vec<RowOutcome>, EngineError> {
    match running {
        Some(running) => (&mut running.outcomes).await,
        None => std::future::pending().await,
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Tells every output of the batch how far it is; ends never, so that the engine decides when the batch is done.
async fn report(
    bus: Bus,
    outputs: Vec<OutputId>,
    mut watched: watch::Receiver<BatchProgress>,
) -> Infallible {
    while watched.changed().await.is_ok() {
        let BatchProgress { tokens, tokens_max } = *watched.borrow_and_update();
        for output in &outputs {
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
