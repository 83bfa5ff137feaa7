//! The worker's loop: take one, decide, paint, store, ack. An ack is the last step and follows a stored result.
//!
//! A message is worked on only after its start is written into the output's life: an output that takes its workers
//! down must have left a trace before it does.

use std::{sync::Arc, time::Duration};

use batching::{Breaker, Redelivery, is_tried};
use messaging::{BusError, Delivery, Fence, KnownLife, Lease, Membership, PublishError, WorkQueue};
use protocol::{
    CurrentWork, DeadLetter, DeadMessage, DenoiseJob, JobError, LifeEvent, OutputId, OutputLife,
    OutputResult, Refusal, StoredLife, Subject, Tenant, WorkStage, WorkerState,
    trace::{attribute, span, value},
};
use service::{
    DeviceThread, DeviceThreadDied, Health, RetryArgs, clock::unix_millis, exit::chain,
    telemetry::spans,
};
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span};

use crate::{
    counters::Counters,
    decide::{Asking, Decision, Facts, decide},
    engine::DenoiseEngine,
    results::{Instants, read, result, unreadable},
    tenant_times::TenantTimes,
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

/// A message that is to be worked on, and what its start is written after.
struct Claimed {
    known: KnownLife,
    tenant: Option<Tenant>,
    lease: Lease,
    /// Ends with the start.
    claim: Span,
}

/// Says how the attempt ended that is being made.
fn ended_as(outcome: &'static str) {
    spans::set(&Span::current(), attribute::OUTCOME, outcome);
}

/// Another worker tries. Not counted as given back: it comes by every half second until somebody takes it.
fn pass_on(output: OutputId, lease: Lease) {
    tracing::info!(%output, "left to another worker");
    ended_as(value::GIVEN_BACK);
    lease.nak(Some(REST));
}

/// Which attempt of a denoiser the next one is, from 1.
fn attempt(life: &OutputLife) -> i64 {
    let attempts = life.attempts.iter();
    let of_stage = attempts.filter(|attempt| attempt.stage == WorkStage::Denoise);
    1 + i64::try_from(of_stage.count()).unwrap_or(i64::MAX)
}

pub(crate) struct Worker<'a> {
    pub(crate) member: &'a Membership,
    pub(crate) engine: DeviceThread<Box<dyn DenoiseEngine>>,
    pub(crate) counters: Counters,
    pub(crate) tenants: TenantTimes,
    pub(crate) health: Health,
    pub(crate) stop: CancellationToken,
    pub(crate) tracker: TaskTracker,
    pub(crate) retry: RetryArgs,
    pub(crate) breaker: Breaker,
}

impl Worker<'_> {
    /// Works until told to stop; an error means that the device is gone.
    pub(crate) async fn run(&mut self, mut queue: WorkQueue) -> Result<(), DeviceThreadDied> {
        let mut outcome = Ok(());
        while let Some(delivery) = self.stop.run_until_cancelled(queue.next()).await {
            if !delivery.is_traced() {
                self.counters.worker.untraced.inc();
            }
            let span = delivery.span();
            // Of its own, because it holds the job and what is known of it many times over on its branches.
            outcome = Box::pin(self.serve(delivery)).instrument(span).await;
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
        let (claim, publisher) = (tracing::debug_span!(span::CLAIM), delivery.publisher());
        let Delivery {
            subject,
            payload,
            tenant,
            delivered,
            lease,
            ..
        } = delivery;
        let Subject::Denoise(_, output) = subject else {
            tracing::error!(%subject, "message under a subject of another queue");
            lease.term("not a denoise subject");
            return Ok(());
        };
        let mut job = match read(output, &payload) {
            Ok(job) => job,
            Err(error) => {
                self.finish(unreadable(output, error), lease).await;
                return Ok(());
            }
        };
        // Whoever had the message before has written to the life since.
        let brought = job.life.take().filter(|_| delivered == 1);
        // What asks the broker is dropped when the worker is to stop, and the lease with it: back at once.
        let known = self.facts(output, brought);
        let (facts, known) = match self.stop.run_until_cancelled(known).await {
            Some(Ok(known)) => known,
            Some(Err(error)) => {
                self.rest(output, &error, lease);
                return Ok(());
            }
            None => {
                self.gives_back();
                return Ok(());
            }
        };
        self.count_redelivery(delivered, &facts.life);
        let asking = Asking {
            worker: &self.member.id,
            attempts_max: self.retry.attempts_max,
            now: unix_millis(),
        };
        let decision = decide(&job, &facts, &asking);
        if matches!(decision, Decision::Paint | Decision::GiveUp) {
            publisher.tell_lost(&facts.life, WorkStage::Denoise, asking.worker, asking.now);
        }
        match decision {
            Decision::Paint => {
                spans::set(&Span::current(), attribute::ATTEMPT, attempt(&facts.life));
                let claimed = Claimed {
                    known,
                    tenant,
                    lease,
                    claim,
                };
                return self.start(job, claimed).await;
            }
            Decision::AlreadyAnswered => {
                tracing::info!(%output, "already answered, acking");
                ended_as(value::ENDED_ELSEWHERE);
                lease.ack().await;
            }
            Decision::Refuse(error) => self.refuse(&job, error, lease).await,
            Decision::PassOn => pass_on(output, lease),
            Decision::GiveUp => {
                let give_up = self.give_up(job, facts.life, lease);
                self.stop.run_until_cancelled(give_up).await;
            }
        }
        Ok(())
    }

    /// The attempt ends unfinished, and nobody is to blame.
    fn gives_back(&self) {
        self.counters.given_back.inc();
        ended_as(value::GIVEN_BACK);
    }

    fn count_redelivery(&self, delivered: u64, life: &OutputLife) {
        if delivered > 1 {
            let why = Redelivery::of(life, WorkStage::Denoise);
            self.counters.redelivered(why);
        }
    }

    /// A broker that does not answer says nothing about the output: it comes again.
    fn rest(&self, output: OutputId, error: &BusError, lease: Lease) {
        tracing::warn!(%output, error = %chain(error), "message broker does not answer, giving the output back");
        self.gives_back();
        lease.nak(Some(REST));
    }

    /// What the decision needs, and the life to write the start after.
    async fn facts(
        &self,
        output: OutputId,
        brought: Option<StoredLife>,
    ) -> Result<(Facts, KnownLife), BusError> {
        let bus = &self.member.bus;
        let known = async {
            match brought {
                Some(life) => Ok(life.into()),
                None => bus.known_life(output).await,
            }
        };
        let (answered, known) = tokio::try_join!(bus.has_result(output), known)?;
        let life = known.life(unix_millis());
        let tried = is_tried(&life, WorkStage::Denoise, self.retry.attempts_max);
        let others = !tried || self.member.has_company().await?;
        let facts = Facts {
            answered,
            life,
            others: others.into(),
        };
        Ok((facts, known))
    }

    async fn start(&mut self, job: DenoiseJob, claimed: Claimed) -> Result<(), DeviceThreadDied> {
        let Claimed {
            known,
            tenant,
            lease,
            claim,
        } = claimed;
        let started = LifeEvent::Started {
            stage: WorkStage::Denoise,
            worker: self.member.id.clone(),
        };
        let bus = &self.member.bus;
        let advanced = async {
            let advanced = bus.advance_known(&known, started, unix_millis()).await?;
            self.followed(job.output, advanced.err());
            Ok(())
        };
        let advanced = self.stop.run_until_cancelled(advanced).await;
        drop(claim);
        match advanced {
            Some(Ok(())) => return self.paint(Arc::new(job), tenant.as_ref(), lease).await,
            // Its start may be stored all the same.
            Some(Err(error)) => {
                self.sign_off(job.output);
                self.rest(job.output, &error, lease);
            }
            None => {
                self.gives_back();
                self.note_given_back(job.output).await;
            }
        }
        Ok(())
    }

    /// Moves the output's life on; says whether the event could follow. One that cannot is counted and changes
    /// nothing: the fence decides.
    async fn advance(&self, output: OutputId, event: LifeEvent) -> Result<bool, BusError> {
        let advanced = self
            .member
            .bus
            .advance(output, event, unix_millis())
            .await?;
        Ok(self.followed(output, advanced.err()))
    }

    fn followed(&self, output: OutputId, refusal: Option<Refusal>) -> bool {
        let Some(refusal) = refusal else { return true };
        tracing::info!(%output, %refusal, "event in the output's life is refused");
        self.counters.worker.refused.inc();
        false
    }

    fn given_back(&self) -> LifeEvent {
        LifeEvent::GivenBack {
            stage: WorkStage::Denoise,
            worker: self.member.id.clone(),
        }
    }

    /// Signs an attempt off that was no failure, by a worker that stops: worth a try, the life only tells less
    /// without it.
    async fn note_given_back(&self, output: OutputId) {
        match timeout(LAST_WORDS_MAX, self.advance(output, self.given_back())).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%output, %error, "attempt is not signed off"),
            Err(_) => tracing::debug!(%output, "attempt is not signed off in time"),
        }
    }

    /// The same by a worker that goes on: beside its work. Refused, and rightly, once somebody else has started.
    fn sign_off(&self, output: OutputId) {
        let (bus, event) = (self.member.bus.clone(), self.given_back());
        self.tracker.spawn(async move {
            if let Err(error) = bus.advance(output, event, unix_millis()).await {
                tracing::debug!(%output, %error, "attempt is not signed off");
            }
        });
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
        self.counters.worker.dead.inc();
        self.refuse(&job, letter.result(), lease).await;
    }

    /// Stores the result, then acks: the only ack of an output that was worked on.
    async fn finish(&self, result: OutputResult, lease: Lease) {
        let (output, failed) = (result.output, result.outcome.is_err());
        let code = result.outcome.as_ref().err().map(|error| error.code);
        let stored = self.store(result);
        match stored.instrument(tracing::debug_span!(span::STORE)).await {
            Some(Fence::First) => {
                match code {
                    Some(code) => spans::fail(&Span::current(), code),
                    None => ended_as(value::DONE),
                }
                let counter = if failed {
                    &self.counters.failed
                } else {
                    &self.counters.painted
                };
                counter.inc();
                tracing::debug!(%output, failed, "result stored");
            }
            Some(Fence::Taken) => {
                self.counters.worker.suppressed.inc();
                tracing::info!(%output, "another result was first, dropping this one");
                ended_as(value::ENDED_ELSEWHERE);
            }
            None => {
                self.gives_back();
                self.note_given_back(output).await;
                return lease.nak(None);
            }
        }
        // Beside the next pull: a denoiser need not wait for what only tidies up.
        self.tracker.spawn(lease.ack());
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
