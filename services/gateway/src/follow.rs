//! A job's task: queues it, takes its results as they come, and ends what is missing at the deadline. Pictures are
//! dropped on arrival: an answer that wants them reads them back from where they are stored.

use std::time::Duration;

use messaging::{BusError, Claim, ClaimError, JobWatch, PublishError};
use protocol::{
    ArJob, ErrorCode, IdempotencyRecord, JobError, JobRecord, OutputResult, PriorityClass,
    trace::{attribute, event, value},
};
use service::{clock::unix_millis, exit::chain, telemetry::spans};
use tokio::{
    sync::{OwnedSemaphorePermit, watch},
    time::{Instant, sleep_until},
};

use tracing::Span;

use crate::{
    answer::Usage,
    counters::JobKind,
    jobs::{Claiming, Jobs, Listed, Queueing, Start},
    outcome::{Cause, Ended, EndedByOutput, is_known},
    outcomes::{Deadline, Outcome},
    reply::ApiError,
    rooms::Room,
    spent::Spent,
    submit::{Order, prior_gone},
};

/// From order to end.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) listed: Listed,
    pub(crate) order: Order,
    pub(crate) start: Start,
    pub(crate) watch: JobWatch,
    pub(crate) ended: watch::Sender<EndedByOutput>,
    pub(crate) queueing: watch::Sender<Queueing>,
    /// Held to the end: it bounds the tasks.
    pub(crate) slot: OwnedSemaphorePermit,
}

/// Why a job was not queued.
enum Failure {
    Claimed(Box<IdempotencyRecord>),
    Publish(PublishError),
    Bus(BusError),
    /// The prior tokens that it needs have run out.
    PriorGone,
}

impl Failure {
    /// None where nothing failed.
    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Claimed(_) => None,
            Self::Publish(error) => Some(error.code()),
            Self::Bus(error) => Some(error.code()),
            Self::PriorGone => Some(ErrorCode::NotFound),
        }
    }
}

impl Follower {
    pub(crate) async fn run(self) {
        let Self {
            listed,
            order,
            start,
            watch,
            ended,
            queueing,
            slot: _slot,
        } = self;
        let jobs = &listed.jobs;
        let known_here_only = matches!(start, Start::New(_));
        let (mut room, claiming, resumed) = match start {
            Start::New(room) => (Some(room), None, false),
            Start::Keyed(room, claiming) => (Some(room), Some(claiming), false),
            Start::Resumed => (None, None, true),
        };
        let deadline = deadline(&order.record);
        let accepted = accepted(&order.record);
        let queued = async {
            if resumed {
                resume(jobs, &order).await
            } else {
                queue(jobs, &order, claiming.as_ref()).await
            }
        };
        let queued = jobs.stop.run_until_cancelled(queued).await;
        let Some(queued) = queued else { return };
        if let Err(failure) = queued {
            if let Some(code) = failure.code() {
                let span = Span::current();
                spans::fail(&span, code);
                // A refusal is no error; a job that never was one is told from those that are.
                spans::set(&span, attribute::OUTCOME, code.as_str());
            }
            if known_here_only && failure.code() == Some(ErrorCode::QueueFull) {
                leave_nothing(jobs, &order.record).await;
            }
            queueing.send_replace(not_queued(jobs, &order.record, failure));
            return;
        }
        let class = order.class();
        let record = order.record;
        tracing::debug!(outputs = record.outputs.len(), size = %record.size, resumed, "job is queued");
        room.iter_mut().for_each(Room::queued);
        queueing.send_replace(Queueing::Queued);
        let mut following = Following {
            jobs,
            record: &record,
            class,
            accepted,
            ended: &ended,
            room,
        };
        let followed = jobs
            .stop
            .run_until_cancelled(following.run(watch, deadline));
        if followed.await.is_none() {
            tracing::debug!("job goes on without this gateway");
        }
    }
}

/// The deadline on this process's clock.
fn deadline(record: &JobRecord) -> Instant {
    Instant::now() + Duration::from_millis(record.deadline_at.saturating_sub(unix_millis()))
}

/// When the job was accepted, on this process's clock, which is not set in between.
fn accepted(record: &JobRecord) -> Instant {
    let now = Instant::now();
    let ago = Duration::from_millis(unix_millis().saturating_sub(record.accepted_at));
    now.checked_sub(ago).unwrap_or(now)
}

/// Queues a job that nobody knows yet.
async fn queue(jobs: &Jobs, order: &Order, claiming: Option<&Claiming>) -> Result<(), Failure> {
    if let Some(Claiming {
        key,
        request_digest,
    }) = claiming
    {
        let claim = IdempotencyRecord {
            request_digest: request_digest.clone(),
            record: order.record.clone(),
        };
        match jobs.bus.claim_key(key, &claim).await? {
            Claim::New => {}
            // An earlier try of this very claim.
            Claim::Taken(taken) if taken.record.job == order.record.job => {}
            Claim::Taken(taken) => return Err(Failure::Claimed(taken)),
        }
    }
    let message = order.ar_job().ok_or(Failure::PriorGone)?;
    jobs.bus.create_job(&order.record).await?;
    Ok(publish(jobs, order, &message).await?)
}

async fn publish(jobs: &Jobs, order: &Order, message: &ArJob) -> Result<(), PublishError> {
    let tenant = order.record.tenant.as_ref();
    let published = jobs.bus.publish_ar_job(order.class(), tenant, message);
    published.await
}

/// Goes on with a job that somebody began to queue: only a job that no worker has touched can be missing from its
/// queue, and while it is in there the server refuses it a second time. Its record is written already.
async fn resume(jobs: &Jobs, order: &Order) -> Result<(), Failure> {
    match order.ar_job() {
        Some(message) => {
            if untouched(jobs, &order.record).await? {
                publish(jobs, order, &message).await?;
            }
        }
        // There is nothing left to begin it with. What was queued has its tokens in it and goes on. In this order: a
        // message that a worker is done with has left traces.
        None => {
            let queued = jobs.bus.is_ar_queued(order.record.job).await?;
            if !queued && untouched(jobs, &order.record).await? {
                return Err(Failure::PriorGone);
            }
        }
    }
    Ok(())
}

/// Whether no worker has left a trace on any output.
async fn untouched(jobs: &Jobs, record: &JobRecord) -> Result<bool, BusError> {
    if !jobs.bus.ended_outputs(record.job).await?.is_empty() {
        return Ok(false);
    }
    for output in &record.outputs {
        if jobs
            .bus
            .life(record.job.output(output.index))
            .await?
            .is_some()
        {
            return Ok(false);
        }
    }
    Ok(true)
}

/// What a client is told of a job that could not be queued; the broker's own words stay in the log.
fn not_queued(jobs: &Jobs, record: &JobRecord, failure: Failure) -> Queueing {
    let (code, text) = match failure {
        Failure::Claimed(claimed) => return Queueing::Claimed(claimed),
        Failure::Publish(error) => (error.code(), chain(&error)),
        Failure::Bus(error) => (error.code(), chain(&error)),
        Failure::PriorGone => return Queueing::Refused(prior_gone().of_unqueued(record.job)),
    };
    tracing::warn!(error = text, "job was not queued");
    Queueing::Refused(match code {
        ErrorCode::QueueFull => {
            let outputs = u64::try_from(record.outputs.len()).unwrap_or(u64::MAX);
            jobs.rooms.refuse(outputs, "the queue of requests is full")
        }
        // A job that was not confirmed may be queued all the same: its id is worth knowing.
        ErrorCode::BusUnavailable => {
            let text = "the message broker did not confirm the job in time";
            ApiError::new(code, text).of_unqueued(record.job)
        }
        // The job's spans are errors, which are kept: its request's, which begins their trace, has to name it.
        _ => ApiError::new(code, "the job could not be queued").of_unqueued(record.job),
    })
}

/// Takes away what a refused job left: its record. Only for a job that nobody else can know. One under a key may be
/// queued by another gateway in this very moment, and be answered: it stays, for whoever asks under the key again to go
/// on with, and expires at its deadline when nobody does.
async fn leave_nothing(jobs: &Jobs, record: &JobRecord) {
    if let Err(error) = jobs.bus.remove_job(record.job).await {
        tracing::warn!(error = chain(&error), job = %record.job, "a refused job left its record; it expires");
    }
}

/// From queued to ended.
struct Following<'a> {
    jobs: &'a Jobs,
    record: &'a JobRecord,
    class: PriorityClass,
    accepted: Instant,
    ended: &'a watch::Sender<EndedByOutput>,
    /// None for a job that another gateway let in.
    room: Option<Room>,
}

impl Following<'_> {
    async fn run(&mut self, mut watch: JobWatch, deadline: Instant) {
        loop {
            tokio::select! {
                result = watch.next() => match result {
                    Some(result) => self.take(&result),
                    None => break,
                },
                () = sleep_until(deadline) => {
                    self.expire().await;
                    break;
                }
            }
        }
        tracing::debug!("job has ended");
        self.tell_usage();
        self.count();
    }

    /// Counted where it was let in, so that a job that several gateways follow counts once.
    fn count(&self) {
        let ended = self.ended.borrow();
        let whole = ended.len() == self.record.outputs.len();
        let outcomes = ended.values().map(|end| self.outcome(&end.outcome));
        let Some(worst) = outcomes.min().filter(|_| self.room.is_some() && whole) else {
            return;
        };
        let kind = JobKind {
            size: self.record.size,
            class: self.class,
        };
        let counters = &self.jobs.counters;
        counters.job_ended(kind, worst, self.accepted.elapsed());
        let tenant = counters.tenants.of(self.record.tenant.as_ref());
        tenant.job_ended(worst);
    }

    /// As what an end counts.
    fn outcome<T>(&self, outcome: &Result<T, JobError>) -> Outcome {
        let set_by = Deadline::of(self.record, self.jobs.job_timeout);
        Outcome::of(outcome, set_by)
    }

    async fn expire(&mut self) {
        tracing::info!("job did not end in time");
        let ended = self.ended.borrow().clone();
        let late = self
            .jobs
            .end_missing(self.record, &ended, Cause::Deadline)
            .await;
        for result in &late {
            self.take(result);
        }
        if !late.iter().all(|result| is_known(&result.outcome)) {
            return;
        }
        // Nobody has to pull it only to find that out.
        if let Err(error) = self.jobs.bus.withdraw(self.record.job).await {
            tracing::debug!(error = chain(&error), "an expired job stays in its queue");
        }
    }

    /// In the job's span: what its answer says that it took. Nothing where no output got as far as its tokens.
    fn tell_usage(&self) {
        let ended = self.ended.borrow();
        if ended.values().all(|ended| ended.usage.is_none()) {
            return;
        }
        let (span, used) = (Span::current(), Usage::of(&ended));
        for (name, tokens) in [
            (attribute::GEN_AI_USAGE_INPUT_TOKENS, used.input_tokens),
            (attribute::GEN_AI_USAGE_OUTPUT_TOKENS, used.output_tokens),
        ] {
            // Signed: of other whole numbers the layer makes texts.
            spans::set(&span, name, i64::try_from(tokens).unwrap_or(i64::MAX));
        }
    }

    /// In the job's span.
    fn tell(&self, result: &OutputResult) {
        let span = Span::current();
        let index = i64::from(result.output.index.get());
        let outcome = match &result.outcome {
            Ok(_) => value::DONE,
            Err(error) => {
                spans::fail(&span, error.code);
                error.code.as_str()
            }
        };
        let attributes = [
            (attribute::OUTPUT_INDEX, index.into()),
            (attribute::OUTCOME, outcome.into()),
        ];
        spans::event(&span, event::OUTPUT_ENDED, attributes);
    }

    fn take(&mut self, result: &OutputResult) {
        self.tell(result);
        if let Err(error) = &result.outcome {
            tracing::info!(output = %result.output, code = %error.code, error = error.text, "output failed");
        }
        // One whose end nobody can tell is taken at its deadline, and once: its client has nothing by then.
        if self.room.is_some() {
            let (outcome, total) = (self.outcome(&result.outcome), self.accepted.elapsed());
            let usage = result.usage.as_ref();
            let spent = Spent::of(&result.timings, usage, unix_millis(), total);
            let counters = &self.jobs.counters;
            counters.output_ended(outcome, spent.as_ref(), total);
            let tenant = counters.tenants.of(self.record.tenant.as_ref());
            tenant.output_ended(outcome, spent.as_ref());
        }
        // First its place: a client that has its answer may ask for the next picture at once.
        self.room.iter_mut().for_each(Room::ended);
        self.ended.send_modify(|ended| {
            ended.insert(result.output.index, Ended::from(result));
        });
    }
}

impl From<PublishError> for Failure {
    fn from(error: PublishError) -> Self {
        Self::Publish(error)
    }
}

impl From<BusError> for Failure {
    fn from(error: BusError) -> Self {
        Self::Bus(error)
    }
}

impl From<ClaimError> for Failure {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Publish(error) => Self::Publish(error),
            ClaimError::Bus(error) => Self::Bus(error),
        }
    }
}
