//! The worker's loop: take one, decide, paint, store, ack. An ack is the last step and follows a stored result.
//!
//! A message is worked on only after its start is written into the output's life: an output that takes its workers
//! down must have left a trace before it does.

use std::{sync::Arc, time::Duration};

use batching::{Breaker, Others};
use messaging::{BusError, Delivery, EndWatch, Fence, Lease, Membership, PublishError, WorkQueue};
use protocol::{
    CurrentWork, DeadLetter, DeadMessage, DenoiseJob, JobError, LifeEvent, OutputId, OutputLife,
    OutputResult, Role, Subject, WorkStage, WorkerState,
};
use service::{DeviceThread, DeviceThreadDied, Health, clock::unix_millis, exit::chain};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use crate::{
    counters::Counters,
    decide::{Asking, Decision, Facts, decide},
    engine::DenoiseEngine,
    results::{Instants, read, result, unreadable},
};

mod paint;
mod quarantine;

/// Between two tries to store a result that the broker did not take. Each try has its own retries; this only keeps a
/// refusing broker from being hammered.
const STORE_PAUSE: Duration = Duration::from_secs(1);

/// How long a message rests that this worker cannot or should not start: another one waits for work by then, or the
/// broker answers again.
const REST: Duration = Duration::from_millis(500);

/// The last words about an attempt of a worker that stops: a broker that does not answer must not hold it up.
const LAST_WORDS_MAX: Duration = Duration::from_millis(500);

/// How patient a worker is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// With an output.
    pub(crate) attempts_max: u32,
    /// With its own engine.
    pub(crate) failures_max: u32,
}

pub(crate) struct Worker<'a> {
    pub(crate) member: &'a Membership,
    pub(crate) engine: DeviceThread<Box<dyn DenoiseEngine>>,
    pub(crate) counters: Counters,
    pub(crate) health: Health,
    pub(crate) stop: CancellationToken,
    attempts_max: u32,
    breaker: Breaker,
}

/// What a worker is made of.
pub(crate) struct Parts<'a> {
    pub(crate) member: &'a Membership,
    pub(crate) engine: DeviceThread<Box<dyn DenoiseEngine>>,
    pub(crate) counters: Counters,
    pub(crate) health: Health,
    pub(crate) stop: CancellationToken,
    pub(crate) patience: Patience,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(parts: Parts<'a>) -> Self {
        let Parts {
            member,
            engine,
            counters,
            health,
            stop,
            patience,
        } = parts;
        Self {
            member,
            engine,
            counters,
            health,
            stop,
            attempts_max: patience.attempts_max,
            breaker: Breaker::new(patience.failures_max),
        }
    }

    /// Works until told to stop; an error means that the device is gone.
    pub(crate) async fn run(&mut self, mut queue: WorkQueue) -> Result<(), DeviceThreadDied> {
        let mut outcome = Ok(());
        while let Some(delivery) = self.stop.run_until_cancelled(queue.next()).await {
            let span = delivery.span();
            outcome = self.serve(delivery).instrument(span).await;
            if outcome.is_ok()
                && let Some(failures) = self.breaker.is_open()
            {
                outcome = self.quarantine(failures).await;
            }
            if outcome.is_err() {
                break;
            }
            self.show(WorkerState::Idle, Vec::new());
        }
        self.show(WorkerState::Draining, Vec::new());
        queue.close().await;
        outcome
    }

    fn show(&self, state: WorkerState, held: Vec<CurrentWork>) {
        self.member
            .presence
            .update(|now| (now.state, now.held) = (state, held));
    }

    async fn serve(&mut self, delivery: Delivery) -> Result<(), DeviceThreadDied> {
        let Delivery {
            subject,
            payload,
            lease,
            ..
        } = delivery;
        let Subject::Denoise(_, output) = subject else {
            tracing::error!(%subject, "message under a subject of another queue");
            lease.term("not a denoise subject");
            return Ok(());
        };
        // Watched before it is looked up: an end in between is not missed.
        let watch = self.member.ends.watch(output);
        let job = match read(output, &payload) {
            Ok(job) => job,
            Err(error) => {
                self.finish(unreadable(output, error), lease).await;
                return Ok(());
            }
        };
        let facts = match self.facts(output).await {
            Ok(facts) => facts,
            Err(error) => {
                self.rest(output, &error, lease);
                return Ok(());
            }
        };
        let asking = Asking {
            worker: &self.member.id,
            attempts_max: self.attempts_max,
            now: unix_millis(),
        };
        match decide(&job, &facts, &asking) {
            Decision::Paint => return self.start(job, lease, watch).await,
            Decision::AlreadyAnswered => {
                tracing::info!(%output, "already answered, acking");
                lease.ack().await;
            }
            Decision::Refuse(error) => self.refuse(&job, error, lease).await,
            Decision::PassOn => {
                tracing::info!(%output, "left to another worker");
                lease.nak(Some(REST));
            }
            Decision::GiveUp => self.give_up(job, facts.life, lease).await,
        }
        Ok(())
    }

    /// A broker that does not answer says nothing about the output: it comes again.
    fn rest(&self, output: OutputId, error: &BusError, lease: Lease) {
        tracing::warn!(%output, error = %chain(error), "message broker does not answer, giving the output back");
        self.counters.given_back.inc();
        lease.nak(Some(REST));
    }

    async fn facts(&self, output: OutputId) -> Result<Facts, BusError> {
        let bus = &self.member.bus;
        let (answered, life) = tokio::try_join!(bus.has_result(output), bus.life(output))?;
        let life = life.unwrap_or_else(|| OutputLife::queued(output, unix_millis()));
        // Asked only when it matters: for an output near its end.
        let tried = life.counted(WorkStage::Denoise).count();
        let others = if u32::try_from(tried).unwrap_or(u32::MAX) < self.attempts_max {
            Others::Some
        } else {
            self.others().await?
        };
        Ok(Facts {
            answered,
            life,
            others,
        })
    }

    async fn others(&self) -> Result<Others, BusError> {
        let workers = self.member.bus.workers().await?;
        let helps = workers.iter().any(|worker| {
            worker.role == Role::Denoiser
                && worker.worker != self.member.id
                && matches!(worker.state, WorkerState::Idle | WorkerState::Busy)
        });
        Ok(if helps { Others::Some } else { Others::None })
    }

    async fn start(
        &mut self,
        job: DenoiseJob,
        lease: Lease,
        watch: EndWatch,
    ) -> Result<(), DeviceThreadDied> {
        let started = LifeEvent::Started {
            stage: WorkStage::Denoise,
            worker: self.member.id.clone(),
        };
        if let Err(error) = self.advance(job.output, started).await {
            self.rest(job.output, &error, lease);
            return Ok(());
        }
        self.paint(Arc::new(job), lease, &watch).await
    }

    /// Moves the output's life on; an event that cannot follow is counted and changes nothing: the fence decides.
    async fn advance(&self, output: OutputId, event: LifeEvent) -> Result<(), BusError> {
        let bus = &self.member.bus;
        if let Err(refusal) = bus.advance(output, event, unix_millis()).await? {
            tracing::info!(%output, %refusal, "event in the output's life is refused");
            self.counters.refused.inc();
        }
        Ok(())
    }

    /// The same for what is only worth a try: the life tells less without it, and nothing is lost.
    async fn note(&self, output: OutputId, event: LifeEvent) {
        match timeout(LAST_WORDS_MAX, self.advance(output, event)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%output, %error, "attempt is not signed off"),
            Err(_) => tracing::debug!(%output, "attempt is not signed off in time"),
        }
    }

    async fn refuse(&self, job: &DenoiseJob, error: JobError, lease: Lease) {
        let refused = result(&self.member.id, job, Err(error), Instants::default());
        self.finish(refused, lease).await;
    }

    /// The letter first: with the result the client hears of it.
    async fn give_up(&self, job: DenoiseJob, life: OutputLife, lease: Lease) {
        let output = job.output;
        let message = DeadMessage::Denoise(job.clone());
        let letter = DeadLetter::new(life, WorkStage::Denoise, message, unix_millis());
        match self.member.bus.publish_dead_letter(&letter).await {
            Ok(()) => {}
            // The result is due all the same: better an output that cannot be replayed than one without an end.
            Err(error) if error.is_final() => {
                tracing::error!(%output, error = %chain(&error), "dead letter is not kept")
            }
            Err(error) => {
                tracing::warn!(%output, error = %chain(&error), "dead letter is not stored yet");
                return lease.nak(Some(REST));
            }
        }
        tracing::warn!(%output, reason = letter.reason.text, "output is given up");
        self.counters.dead.inc();
        self.refuse(&job, letter.result(), lease).await;
    }

    /// Stores the result, then acks: the only ack of an output that was worked on.
    async fn finish(&self, result: OutputResult, lease: Lease) {
        let (output, failed) = (result.output, result.outcome.is_err());
        match self.store(result).await {
            Some(Fence::First) => {
                let counter = if failed {
                    &self.counters.failed
                } else {
                    &self.counters.painted
                };
                counter.inc();
                tracing::debug!(%output, failed, "result stored");
            }
            Some(Fence::Taken) => {
                self.counters.suppressed.inc();
                tracing::info!(%output, "another result was first, dropping this one");
            }
            None => {
                self.counters.given_back.inc();
                return lease.nak(None);
            }
        }
        lease.ack().await;
    }

    /// Tries until the broker has a result for this output, or the worker is to stop.
    async fn store(&self, mut result: OutputResult) -> Option<Fence> {
        loop {
            // When stopped in the middle, the result may be stored all the same: whoever gets the output next sees it.
            let put = self.member.bus.put_result(&result);
            match self.stop.run_until_cancelled(put).await? {
                Ok(fence) => return Some(fence),
                Err(error @ (PublishError::TooLarge { .. } | PublishError::Encode(_))) => {
                    result.outcome = Err(JobError::new(error.code(), &chain(&error)));
                }
                Err(error) => {
                    tracing::warn!(output = %result.output, error = %chain(&error), "result not stored, trying again");
                    self.stop.run_until_cancelled(sleep(STORE_PAUSE)).await?;
                }
            }
        }
    }
}
