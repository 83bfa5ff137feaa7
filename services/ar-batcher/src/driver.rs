//! The loop: select an event, let `batching` decide, carry the action out. No rule lives here.
//!
//! A request's message is acked only when every output of it is stored as a denoise message or as a result. Until
//! then it is ours by progress acks, and a batcher's death gives it to another, where the outputs already fanned out
//! are known by their lives and results.

use std::{collections::HashMap, sync::Arc, time::Duration};

use batching::{Action, BatchFormer, BatchId, Breaker, Event, Limits, Row};
use messaging::{Delivery, WorkQueue};
use protocol::{JobId, OutputId, PriorityClass, Subject, WorkerState};
use service::{Health, RetryArgs, clock::unix_millis};
use tokio::{sync::oneshot, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use crate::{
    admit,
    batch::{Batch, RowEnd},
    bench::Bench,
    engine::{EngineError, PriorBatch, PriorEngine},
    request::Held,
};

mod let_go;
mod quarantine;
mod settling;

/// How often what is held is looked through: for leases that were lost and deadlines that passed unheard.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// What the driver works with.
pub(crate) struct Parts<'a> {
    pub(crate) bench: Bench<'a>,
    pub(crate) engine: Arc<dyn PriorEngine>,
    pub(crate) limits: Limits,
    pub(crate) retry: RetryArgs,
    pub(crate) health: Health,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// A queue per priority class, the first to go first.
pub(crate) struct ByClass(pub(crate) Vec<WorkQueue>);

impl ByClass {
    async fn next(&mut self) -> Delivery {
        let nexts = self.0.iter_mut().map(|queue| Box::pin(queue.next()));
        futures::future::select_all(nexts).await.0
    }

    async fn close(self) {
        futures::future::join_all(self.0.into_iter().map(WorkQueue::close)).await;
    }
}

/// A batch on the engine.
struct Running {
    id: BatchId,
    outputs: Vec<OutputId>,
    started_at: u64,
    /// Of this batch alone.
    stop: CancellationToken,
    /// It was told to stop because nobody needs it any more.
    unneeded: bool,
    ends: oneshot::Receiver<Result<Vec<(OutputId, RowEnd)>, EngineError>>,
}

pub(crate) struct Driver<'a> {
    parts: Parts<'a>,
    former: BatchFormer,
    breaker: Breaker,
    /// Bounded: the former wants no more once a batch is waiting.
    held: HashMap<JobId, Held>,
    running: Option<Running>,
    /// Of a batch that has ended and is being stored.
    unsettled: Vec<OutputId>,
    wake_at: Option<Instant>,
}

/// The task that ran a batch ended without a word.
#[derive(Debug, thiserror::Error)]
#[error("the batch's task has died")]
struct BatchDied;

impl<'a> Driver<'a> {
    pub(crate) fn new(parts: Parts<'a>) -> Self {
        Self {
            former: BatchFormer::new(parts.limits.clone()),
            breaker: Breaker::new(parts.retry.failures_max),
            parts,
            held: HashMap::new(),
            running: None,
            unsettled: Vec::new(),
            wake_at: None,
        }
    }

    /// Runs until told to stop; an error means that the engine is gone. Either way what is held goes back.
    pub(crate) async fn run(mut self, mut queue: ByClass) -> Result<(), EngineError> {
        let stop = self.parts.stop.clone();
        let work = async {
            loop {
                let failures = self.drive(&mut queue).await?;
                self.quarantine(failures).await?;
            }
        };
        let outcome: Option<Result<(), EngineError>> = stop.run_until_cancelled(work).await;
        self.show(WorkerState::Draining);
        if let Some(Err(EngineError::Gone(_))) = &outcome {
            // The batch may be what took the engine down: its attempts stay open, and count.
            self.running = None;
        }
        self.give_back().await;
        queue.close().await;
        match outcome {
            // The device saw the token first.
            None | Some(Err(EngineError::Stopped)) => Ok(()),
            Some(outcome) => outcome,
        }
    }

    /// Works until the engine has failed too often; returns how often.
    async fn drive(&mut self, queue: &mut ByClass) -> Result<u32, EngineError> {
        let mut ends = self.parts.bench.member.ends.changes();
        let mut look = tokio::time::interval(LOOK_PERIOD);
        loop {
            if let Some(failures) = self.breaker.is_open() {
                return Ok(failures);
            }
            tokio::select! {
                outcomes = running(&mut self.running) => self.finished(outcomes?).await,
                delivery = queue.next(), if self.wants_more() => self.arrived(delivery).await,
                // The sender lives in the membership.
                _ = ends.changed() => self.look_through().await,
                _ = look.tick() => self.look_through().await,
                () = sleep_until(self.wake_at) => self.apply(Event::Woken),
            }
        }
    }

    /// Not while a batch does not end although it was told to: the engine may hang, and another batcher may not.
    fn wants_more(&self) -> bool {
        let unneeded = |running: &Running| running.unneeded;
        // The classes share a bound until each has a loop of its own.
        let wanted = |class| self.former.wanted(class) > 0;
        PriorityClass::ALL.into_iter().all(wanted) && !self.running.as_ref().is_some_and(unneeded)
    }

    fn show(&self, state: WorkerState) {
        let held = self.held.values().filter_map(Held::work).collect();
        let presence = &self.parts.bench.member.presence;
        presence.update(|now| (now.state, now.held) = (state, held));
    }

    fn show_work(&self) {
        self.show(match self.running {
            Some(_) => WorkerState::Busy,
            None => WorkerState::Idle,
        });
    }

    async fn arrived(&mut self, delivery: Delivery) {
        if let Subject::Ar(_, job) = delivery.subject
            && self.held.contains_key(&job)
        {
            // Stored twice: the first one was out of the queue for a moment.
            tracing::info!(%job, "another message of a held request, acking it");
            return delivery.lease.ack().await;
        }
        let span = delivery.span();
        let admitted = admit::admit(&self.parts.bench, delivery).instrument(span);
        if let Some((job, held)) = admitted.await {
            let rows = held.rows();
            self.held.insert(job, held);
            self.apply(Event::Arrived(rows));
            self.show_work();
        }
    }

    fn apply(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            self.wake_at = None;
            for action in self.former.apply(event, Instant::now().into_std()) {
                match action {
                    Action::WakeAt(at) => self.wake_at = Some(Instant::from_std(at)),
                    Action::Run { batch, rows, .. } => {
                        if !self.start(batch, &rows) {
                            events.push(Event::Finished(batch));
                        }
                    }
                }
            }
        }
    }

    /// Starts those of `rows` that still need it; says whether there were any.
    fn start(&mut self, id: BatchId, rows: &[Row]) -> bool {
        let now = unix_millis();
        let needed = |row: &&Row| {
            let held = self.held.get(&row.output.job);
            held.is_some_and(|held| held.needs(row.output) && held.in_time(now))
        };
        let rows: Vec<Row> = rows.iter().filter(needed).copied().collect();
        let held = |row: &Row| self.held.get(&row.output.job);
        let prior_rows = rows
            .iter()
            .filter_map(|row| held(row)?.prior_row(row.output))
            .collect();
        let Some(size) = rows.first().map(|row| row.size) else {
            return false;
        };
        // The batch is one span; it follows from every request in it.
        let span = tracing::info_span!("ar batch", rows = rows.len(), %size);
        for held in rows.iter().filter_map(held) {
            span.follows_from(&held.span);
        }
        tracing::debug!(parent: &span, "batch started");
        self.parts.bench.counters.started(rows.len());
        let stop = self.parts.stop.child_token();
        let batch = Batch {
            bus: self.parts.bench.member.bus.clone(),
            engine: Arc::clone(&self.parts.engine),
            worker: self.parts.bench.member.id.clone(),
            batch: PriorBatch {
                size,
                rows: prior_rows,
            },
            stop: stop.clone(),
            stall_max: self.parts.retry.stall_max,
        };
        let (told, ends) = oneshot::channel();
        let run = async move {
            if told.send(batch.run().await).is_err() {
                tracing::debug!("batch ended for nobody");
            }
        };
        self.parts.tracker.spawn(run.instrument(span));
        self.running = Some(Running {
            id,
            outputs: rows.iter().map(|row| row.output).collect(),
            started_at: unix_millis(),
            stop,
            unneeded: false,
            ends,
        });
        self.show(WorkerState::Busy);
        true
    }
}

/// The running batch's ends; waits for ever when none runs. The batch stays in its place until it is done, so that
/// a dropped wait loses nothing.
async fn running(running: &mut Option<Running>) -> Result<Vec<(OutputId, RowEnd)>, EngineError> {
    let Some(batch) = running else {
        return std::future::pending().await;
    };
    match (&mut batch.ends).await {
        Ok(Err(EngineError::Stopped)) if batch.unneeded => Ok(Vec::new()),
        Ok(ends) => ends,
        Err(_) => Err(EngineError::Gone(BatchDied.into())),
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
