//! A request in the batcher's hands: taken when its message comes, settled when each of its outputs is on its way.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use batching::Row;
use messaging::{KnownLife, Lease};
use protocol::{
    ArJob, CurrentWork, DenoiseJob, JobId, OutputId, OutputIndex, OutputRequest, PriorId,
    PriorityClass, StoredPrior, Tenant, UnixMillis, topology::in_time,
};
use service::clock::unix_millis;
use tracing::Span;

use crate::{
    engine::{Prior, PriorRow},
    settle::REST,
};

mod open;

pub(crate) use self::open::{Doing, OpenOutput};

/// What is asked for. Shared by everything that is done for it.
pub(crate) struct Request {
    job: ArJob,
    prompt: Arc<str>,
    pub(crate) class: PriorityClass,
    /// Whose the denoisers' work on it will be.
    pub(crate) tenant: Option<Tenant>,
    /// The parent of everything published for it.
    pub(crate) span: Span,
}

/// Prior tokens on their way to a denoiser.
pub(crate) struct Made {
    pub(crate) prior: Prior,
    /// Under which they are stored.
    pub(crate) id: Option<PriorId>,
    pub(crate) times: BatchTimes,
}

/// When a batch ran.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchTimes {
    pub(crate) started_at: UnixMillis,
    pub(crate) finished_at: UnixMillis,
}

impl Request {
    /// Of a message of `tenant` that came under `class`.
    pub(crate) fn new(job: ArJob, class: PriorityClass, tenant: Option<Tenant>) -> Self {
        Self {
            prompt: Arc::from(job.prompt.as_str()),
            job,
            class,
            tenant,
            span: Span::current(),
        }
    }

    pub(crate) fn id(&self) -> JobId {
        self.job.job
    }

    pub(crate) fn outputs(&self) -> impl Iterator<Item = OutputId> {
        let outputs = self.job.outputs.iter();
        outputs.map(|output| self.job.job.output(output.index))
    }

    /// Prior tokens that came with it: the engine has nothing to do.
    pub(crate) fn prior(&self) -> Option<&StoredPrior> {
        self.job.prior.as_ref()
    }

    /// When the gateway accepted it.
    pub(crate) fn accepted_at(&self) -> UnixMillis {
        self.job.accepted_at
    }

    /// Whether work on it may start at `now`.
    pub(crate) fn in_time(&self, now: UnixMillis) -> bool {
        in_time(self.job.deadline_at, now)
    }

    fn output(&self, index: OutputIndex) -> Option<&OutputRequest> {
        self.job.outputs.iter().find(|output| output.index == index)
    }

    fn row(&self, index: OutputIndex, arrived: Instant, alone: bool) -> Row {
        Row {
            output: self.job.job.output(index),
            size: self.job.size,
            class: self.class,
            arrived,
            deadline: instant_of(self.job.deadline_at),
            alone,
        }
    }

    /// Its message with `output` alone, for a dead letter.
    pub(crate) fn message_of(&self, output: OutputId) -> ArJob {
        let mut job = self.job.clone();
        job.outputs.retain(|request| request.index == output.index);
        job
    }

    /// The engine's row of `output`; `None` for an output that is not this request's.
    pub(crate) fn prior_row(&self, output: OutputId) -> Option<PriorRow> {
        let request = self.output(output.index)?;
        Some(PriorRow {
            output,
            prompt: Arc::clone(&self.prompt),
            seed: request.seed,
        })
    }

    /// The denoise message of the output with the life `known`.
    pub(crate) fn denoise_job(&self, known: &KnownLife, made: Made) -> Option<DenoiseJob> {
        let output = known.output();
        let request = self.output(output.index)?;
        Some(DenoiseJob {
            output,
            prompt: self.job.prompt.clone(),
            seed: request.seed,
            size: self.job.size,
            format: self.job.format,
            denoise: self.job.denoise,
            prior: made.prior.tokens,
            usage: made.prior.usage,
            prior_id: made.id,
            life: known.stored(),
            accepted_at: self.job.accepted_at,
            ar_started_at: made.times.started_at,
            ar_finished_at: made.times.finished_at,
            deadline_at: self.job.deadline_at,
        })
    }
}

/// A held request.
pub(crate) struct Held {
    pub(crate) request: Arc<Request>,
    pub(crate) lease: Lease,
    held_since: UnixMillis,
    /// Another batcher is known to hold the message as well.
    foreign: bool,
    /// Outputs not yet fanned out or answered.
    open: BTreeMap<OutputIndex, OpenOutput>,
}

impl Held {
    /// A request of which the outputs `open` still need prior tokens.
    pub(crate) fn new(
        request: Arc<Request>,
        open: BTreeMap<OutputIndex, OpenOutput>,
        lease: Lease,
    ) -> Self {
        let mut held = Self {
            request,
            lease,
            held_since: unix_millis(),
            foreign: false,
            open,
        };
        for open in held.open.values_mut() {
            open.now(open.doing, &held.request.span);
        }
        held
    }

    /// The rows to run.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let arrived = instant_of(self.request.accepted_at());
        let waiting = |open: &OpenOutput| matches!(open.doing, Doing::Waiting { .. });
        let rows = self.open.iter().filter(|(_, open)| waiting(open));
        rows.map(|(index, open)| self.request.row(*index, arrived, open.suspect))
            .collect()
    }

    /// What the fleet is told of it; `None` for a request without outputs.
    pub(crate) fn work(&self) -> Option<CurrentWork> {
        Some(CurrentWork {
            output: self.request.outputs().next()?,
            ack_subject: self.lease.ack_subject(),
            since: self.held_since,
        })
    }

    /// An open output.
    pub(crate) fn output(&mut self, output: OutputId) -> Option<&mut OpenOutput> {
        self.open.get_mut(&output.index)
    }

    /// What is being done for `output`; `None` when it is not open.
    pub(crate) fn doing(&self, output: OutputId) -> Option<Doing> {
        self.open.get(&output.index).map(|open| open.doing)
    }

    /// Outputs that have ended by other hands than ours, and are in nobody's hands here that will tell.
    pub(crate) fn ended(&self) -> Vec<OutputId> {
        self.with(|open| open.watch.has_ended() && !open.doing.tells())
    }

    /// Outputs that nobody here tells of.
    pub(crate) fn untold(&self) -> Vec<OutputId> {
        self.with(|open| !open.doing.tells())
    }

    /// Outputs of which an attempt may be open.
    pub(crate) fn in_hand(&self) -> Vec<OutputId> {
        self.with(|open| matches!(open.doing, Doing::Running(_) | Doing::Settling))
    }

    /// Every output that is open.
    pub(crate) fn open(&self) -> Vec<OutputId> {
        self.with(|_| true)
    }

    /// Outputs that have waited since before `held_since`, and whose lives do not say so yet.
    pub(crate) fn waiting_unsaid(&self, held_since: UnixMillis) -> Vec<OutputId> {
        let waits = |open: &OpenOutput| open.doing == Doing::Waiting { told: false };
        self.with(|open| self.held_since <= held_since && waits(open))
    }

    /// Whether an output of it waits here, for an engine or for room.
    pub(crate) fn waits(&self) -> bool {
        let mut open = self.open.values();
        open.any(|open| matches!(open.doing, Doing::Waiting { .. }))
    }

    fn with(&self, matches: impl Fn(&OpenOutput) -> bool) -> Vec<OutputId> {
        let open = self.open.iter().filter(|(_, open)| matches(open));
        open.map(|(index, _)| self.request.id().output(*index))
            .collect()
    }

    /// Whether `output` still needs its prior.
    pub(crate) fn needs(&self, output: OutputId) -> bool {
        let open = self.open.get(&output.index);
        open.is_some_and(|open| !open.watch.has_ended() && !open.doing.tells())
    }

    /// `output` waits once more, in its place; `None` when it is not open.
    pub(crate) fn again(&mut self, output: OutputId, known: KnownLife) -> Option<Row> {
        let open = self.open.get_mut(&output.index)?;
        open.known = known;
        open.now(Doing::Waiting { told: false }, &self.request.span);
        let (suspect, arrived) = (open.suspect, instant_of(self.request.accepted_at()));
        Some(self.request.row(output.index, arrived, suspect))
    }

    /// The same after an attempt that failed: it has had its turn, and waits anew.
    pub(crate) fn retry(
        &mut self,
        output: OutputId,
        known: KnownLife,
        suspect: bool,
    ) -> Option<Row> {
        self.output(output)?.suspect = suspect;
        let row = self.again(output, known)?;
        Some(Row {
            arrived: now(),
            ..row
        })
    }

    /// `output` is left to another worker.
    pub(crate) fn park(&mut self, output: OutputId) {
        let request = Arc::clone(&self.request);
        if let Some(open) = self.output(output) {
            open.now(Doing::Parked, &request.span);
        }
    }

    /// Another batcher has started on `output`: it holds the message by now.
    pub(crate) fn park_for_another(&mut self, output: OutputId) {
        self.foreign = true;
        self.park(output);
    }

    /// `output` is on its way or answered.
    pub(crate) fn settle(&mut self, output: OutputId) -> Option<OpenOutput> {
        self.open.remove(&output.index)
    }

    /// What is to be done with its message now.
    pub(crate) fn rest(&self) -> Rest {
        let parked = |open: &OpenOutput| open.doing == Doing::Parked;
        if self.open.is_empty() {
            Rest::Ack
        } else if !self.open.values().all(parked) {
            Rest::Keep
        } else if self.foreign {
            Rest::LetGo
        } else {
            Rest::GiveBack
        }
    }

    /// Lets the message go as `rest` says; returns what is left to be acked.
    pub(crate) fn close(self, rest: Rest) -> Option<Lease> {
        match rest {
            Rest::Ack => return Some(self.lease),
            Rest::Keep | Rest::GiveBack => self.lease.nak(Some(REST)),
            Rest::LetGo => self.lease.abandon(),
        }
        None
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// A time of the wire on this process's clock.
fn instant_of(at: UnixMillis) -> Instant {
    let (wall, now) = (unix_millis(), now());
    if at >= wall {
        now + Duration::from_millis(at - wall)
    } else {
        let ago = Duration::from_millis(wall - at);
        // A machine that started after the request came is not older than itself.
        now.checked_sub(ago).unwrap_or(now)
    }
}

/// What is to be done with a request's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rest {
    /// Outputs of it wait or run here.
    Keep,
    /// Every output is on its way or answered.
    Ack,
    /// What is left is another worker's to try.
    GiveBack,
    /// Another worker has it.
    LetGo,
}
