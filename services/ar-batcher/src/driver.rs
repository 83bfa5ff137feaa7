//! The loop: select an event, let `batching` decide, carry the action out. No rule lives here.
//!
//! A request's message is acked only when every output of it is stored as a denoise message or as a result. Until
//! then it is ours by progress acks, and a batcher's death gives it to another, where the outputs already fanned out
//! are known by their lives and results.

use std::{collections::HashMap, sync::Arc, time::Duration};

use batching::{
    Action, BatchFormer, BatchLimits, Breaker, Event, Row, Start, is_retried, may_start,
};
use futures::future::join_all;
use messaging::{Delivery, WorkQueue};
use protocol::{JobError, JobId, LifeEvent, OutputId, Subject, WorkStage, WorkerState};
use service::{Health, clock::unix_millis};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use crate::{
    admit,
    batch::{Batch, RowEnd},
    bench::{Bench, LAST_WORDS_MAX},
    engine::{EngineError, PriorBatch, PriorEngine, RowOutcome},
    request::{BatchTimes, Held},
    settle,
};

mod quarantine;

/// How often what is held is looked through: for leases that were lost and deadlines that passed unheard.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// What the driver works with.
pub(crate) struct Parts<'a> {
    pub(crate) bench: Bench<'a>,
    pub(crate) engine: Arc<dyn PriorEngine>,
    pub(crate) limits: BatchLimits,
    pub(crate) failures_max: u32,
    pub(crate) health: Health,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// A batch on the engine.
struct Running {
    outputs: Vec<OutputId>,
    started_at: u64,
    /// Of this batch alone.
    stop: CancellationToken,
    ends: oneshot::Receiver<Result<Vec<(OutputId, RowEnd)>, EngineError>>,
}

pub(crate) struct Driver<'a> {
    parts: Parts<'a>,
    former: BatchFormer,
    breaker: Breaker,
    /// Bounded: the former wants no more once a batch is waiting.
    held: HashMap<JobId, Held>,
    running: Option<Running>,
    wake_at: Option<Instant>,
}

/// The task that ran a batch ended without a word.
#[derive(Debug, thiserror::Error)]
#[error("the batch's task has died")]
struct BatchDied;

impl<'a> Driver<'a> {
    pub(crate) fn new(parts: Parts<'a>) -> Self {
        Self {
            former: BatchFormer::new(parts.limits),
            breaker: Breaker::new(parts.failures_max),
            parts,
            held: HashMap::new(),
            running: None,
            wake_at: None,
        }
    }

    /// Runs until told to stop; an error means that the engine is gone. Either way what is held goes back.
    pub(crate) async fn run(mut self, mut queue: WorkQueue) -> Result<(), EngineError> {
        let stop = self.parts.stop.clone();
        let work = async {
            loop {
                let failures = self.drive(&mut queue).await?;
                self.quarantine(failures).await?;
            }
        };
        let outcome: Option<Result<(), EngineError>> = stop.run_until_cancelled(work).await;
        self.show(WorkerState::Draining);
        self.give_back().await;
        queue.close().await;
        match outcome {
            // The device saw the token first.
            None | Some(Err(EngineError::Stopped)) => Ok(()),
            Some(outcome) => outcome,
        }
    }

    /// Works until the engine has failed too often; returns how often.
    async fn drive(&mut self, queue: &mut WorkQueue) -> Result<u32, EngineError> {
        let mut ends = self.parts.bench.member.ends.changes();
        let mut look = tokio::time::interval(LOOK_PERIOD);
        loop {
            if let Some(failures) = self.breaker.is_open() {
                return Ok(failures);
            }
            tokio::select! {
                outcomes = running(&mut self.running) => self.finished(outcomes?).await,
                delivery = queue.next(), if self.former.wants_more() => self.arrived(delivery).await,
                // The sender lives in the membership.
                _ = ends.changed() => self.look_through().await,
                _ = look.tick() => self.look_through().await,
                () = sleep_until(self.wake_at) => self.apply(Event::Woken),
            }
        }
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
            // Stored twice, by a gateway that did not hear of the first time.
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
        let mut event = Some(event);
        while let Some(next) = event.take() {
            self.wake_at = None;
            match self.former.apply(next, Instant::now().into_std()) {
                None => {}
                Some(Action::WakeAt(at)) => self.wake_at = Some(Instant::from_std(at)),
                Some(Action::Run(rows)) if !self.start(&rows) => event = Some(Event::Finished),
                Some(Action::Run(_)) => {}
            }
        }
    }

    /// Starts those of `rows` that still need it; says whether there were any.
    fn start(&mut self, rows: &[Row]) -> bool {
        let now = unix_millis();
        let needed = |row: &&Row| {
            let held = self.held.get(&row.output.job);
            held.is_some_and(|held| {
                held.needs(row.output) && held.in_time(now) && !held.lease.is_lost()
            })
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
        };
        let (told, ends) = oneshot::channel();
        let run = async move {
            if told.send(batch.run().await).is_err() {
                tracing::debug!("batch ended for nobody");
            }
        };
        self.parts.tracker.spawn(run.instrument(span));
        self.running = Some(Running {
            outputs: rows.iter().map(|row| row.output).collect(),
            started_at: unix_millis(),
            stop,
            ends,
        });
        self.show(WorkerState::Busy);
        true
    }

    /// The next batch is on the device before this one's outputs are stored. When the broker takes longer than that
    /// batch, the engine waits: the back-pressure that keeps a batcher from running ahead of a full queue.
    async fn finished(&mut self, ends: Vec<(OutputId, RowEnd)>) {
        let Some(Running { started_at, .. }) = self.running.take() else {
            return;
        };
        let times = BatchTimes {
            started_at,
            finished_at: unix_millis(),
        };
        self.judge_engine(&ends);
        self.apply(Event::Finished);
        for (output, end) in ends {
            self.settle(output, end, times).await;
        }
        self.show_work();
    }

    /// A batch of which nothing came back is one failure, however many rows it had.
    fn judge_engine(&mut self, ends: &[(OutputId, RowEnd)]) {
        let failed =
            |end: &RowEnd| matches!(end, RowEnd::Ran(Err(error)) if is_retried(error.code));
        let fine = |end: &RowEnd| matches!(end, RowEnd::Ran(outcome) if outcome.is_ok());
        if ends.iter().any(|(_, end)| fine(end)) {
            self.breaker.succeeded();
        } else if ends.iter().any(|(_, end)| failed(end)) {
            self.breaker.failed();
        }
    }

    async fn settle(&mut self, output: OutputId, end: RowEnd, times: BatchTimes) {
        let Some(mut held) = self.held.remove(&output.job) else {
            return;
        };
        let span = held.span.clone();
        let again = self
            .settle_row(&mut held, output, end, times)
            .instrument(span)
            .await;
        if let Some(held) = self.parts.bench.keep(held).await {
            self.held.insert(output.job, held);
        }
        if let Some(row) = again {
            self.apply(Event::Arrived(vec![row]));
        }
    }

    /// What a row came to; a row that is to run again is returned.
    async fn settle_row(
        &self,
        held: &mut Held,
        output: OutputId,
        end: RowEnd,
        times: BatchTimes,
    ) -> Option<Row> {
        let bench = &self.parts.bench;
        match end {
            _ if !held.needs(output) => bench.counters.withdrawn.inc(),
            RowEnd::Refused => bench.counters.withdrawn.inc(),
            RowEnd::Unrecorded => {
                held.park(output);
                return None;
            }
            RowEnd::Ran(outcome) => return self.ran(held, output, outcome, times).await,
        };
        held.settle(output);
        None
    }

    async fn ran(
        &self,
        held: &mut Held,
        output: OutputId,
        outcome: RowOutcome,
        times: BatchTimes,
    ) -> Option<Row> {
        let bench = &self.parts.bench;
        bench.counters.row(outcome.is_ok());
        match outcome {
            Ok(prior) => settle::fan_out(bench, held, output, prior, times).await,
            Err(error) if is_retried(error.code) => return self.retry(held, output, error).await,
            Err(error) => settle::refuse(bench, held, output, error).await,
        }
        held.settle(output);
        None
    }

    /// A row that failed runs again, alone; or elsewhere; or never.
    async fn retry(&self, held: &mut Held, output: OutputId, error: JobError) -> Option<Row> {
        let bench = &self.parts.bench;
        tracing::warn!(%output, code = %error.code, error = error.text, "attempt failed");
        let (stage, worker) = (WorkStage::Prior, bench.member.id.clone());
        let failed = LifeEvent::AttemptFailed {
            stage,
            worker,
            error,
        };
        let known = async {
            let life = bench.advanced(output, failed).await?;
            let others = bench.others_if_tried(life.as_slice()).await?;
            Ok::<_, messaging::BusError>(life.map(|life| (life, others)))
        };
        let (life, others) = match known.await {
            Ok(Some(known)) => known,
            // Another batcher started it meanwhile, or nothing is known: it is not ours to try.
            Ok(None) | Err(_) => {
                held.park(output);
                return None;
            }
        };
        match may_start(&life, stage, &bench.member.id, others, bench.attempts_max) {
            Start::Go => return held.suspect(output),
            Start::PassOn => held.park(output),
            Start::GiveUp => bench.give_up(held, life).await,
        }
        None
    }

    /// Lets go of what has ended, what was lost and what is too late; stops the batch that runs for nobody.
    async fn look_through(&mut self) {
        let now = unix_millis();
        let jobs: Vec<JobId> = self.held.keys().copied().collect();
        let mut gone = Vec::new();
        for job in jobs {
            let Some(mut held) = self.held.remove(&job) else {
                continue;
            };
            if held.lease.is_lost() {
                tracing::warn!(%job, "request is probably another batcher's by now");
                gone.extend(held.open());
                continue;
            }
            let mut ended = held.ended();
            if !held.in_time(now) {
                for output in held.open() {
                    settle::refuse(&self.parts.bench, &held, output, settle::too_late()).await;
                }
                ended = held.open();
            }
            for output in &ended {
                held.settle(*output);
            }
            let count = u64::try_from(ended.len()).unwrap_or(u64::MAX);
            self.parts.bench.counters.withdrawn.inc_by(count);
            gone.extend(ended);
            if let Some(held) = self.parts.bench.keep(held).await {
                self.held.insert(job, held);
            }
        }
        if gone.is_empty() {
            return;
        }
        self.apply(Event::Withdrawn(gone));
        if let Some(running) = &self.running
            && !running.outputs.iter().any(|output| self.needs(*output))
        {
            tracing::info!("every output of the running batch has ended, stopping it");
            running.stop.cancel();
        }
        self.show_work();
    }

    fn needs(&self, output: OutputId) -> bool {
        self.held
            .get(&output.job)
            .is_some_and(|held| held.needs(output))
    }

    /// Lets go of everything; the attempts that run are signed off first, since they are no failures.
    async fn give_back(&mut self) {
        let outputs = self.running.take().map(|running| running.outputs);
        let signed_off = join_all(outputs.unwrap_or_default().into_iter().map(|output| {
            let (stage, worker) = (WorkStage::Prior, self.parts.bench.member.id.clone());
            let event = LifeEvent::GivenBack { stage, worker };
            self.parts.bench.advance(output, event)
        }));
        if timeout(LAST_WORDS_MAX, signed_off).await.is_err() {
            tracing::debug!("attempts are not signed off in time");
        }
        // Dropped leases go back to the queue at once.
        self.held.clear();
        self.former = BatchFormer::new(self.parts.limits);
        self.wake_at = None;
    }
}

/// The running batch's ends; waits for ever when none runs. The batch stays in its place until it is done, so that
/// a dropped wait loses nothing.
async fn running(running: &mut Option<Running>) -> Result<Vec<(OutputId, RowEnd)>, EngineError> {
    let Some(batch) = running else {
        return std::future::pending().await;
    };
    match (&mut batch.ends).await {
        // Nobody waits for it any more.
        Ok(Err(EngineError::Stopped)) if batch.stop.is_cancelled() => Ok(Vec::new()),
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
