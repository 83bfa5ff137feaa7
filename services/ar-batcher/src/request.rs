//! A request in the batcher's hands: taken when its message comes, settled when each of its outputs is on its way.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use batching::Row;
use messaging::{EndWatch, Lease};
use protocol::{
    ArJob, CurrentWork, DenoiseJob, OutputId, OutputIndex, OutputRequest, PriorityClass,
    UnixMillis, topology::in_time,
};

use service::clock::unix_millis;

use crate::engine::{Prior, PriorRow};

/// A held request.
pub(crate) struct Held {
    job: ArJob,
    prompt: Arc<str>,
    pub(crate) class: PriorityClass,
    /// Its span: the parent of everything published for it.
    pub(crate) span: tracing::Span,
    pub(crate) lease: Lease,
    held_since: UnixMillis,
    /// Another batcher is known to hold the message as well.
    foreign: bool,
    /// Outputs not yet fanned out or answered.
    open: BTreeMap<OutputIndex, OpenOutput>,
}

/// An output that needs prior tokens.
pub(crate) struct OpenOutput {
    /// Tells when it has ended.
    pub(crate) watch: EndWatch,
    /// An earlier attempt failed or vanished: it runs alone.
    pub(crate) suspect: bool,
    /// Not this worker's to try: it goes back when the request has nothing else left here.
    pub(crate) parked: bool,
}

/// When a batch ran.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchTimes {
    pub(crate) started_at: UnixMillis,
    pub(crate) finished_at: UnixMillis,
}

impl Held {
    /// A request of which the outputs `open` still need prior tokens.
    pub(crate) fn new(
        job: ArJob,
        open: BTreeMap<OutputIndex, OpenOutput>,
        class: PriorityClass,
        lease: Lease,
        held_since: UnixMillis,
    ) -> Self {
        let prompt = Arc::from(job.prompt.as_str());
        Self {
            job,
            prompt,
            class,
            span: tracing::Span::current(),
            lease,
            held_since,
            foreign: false,
            open,
        }
    }

    /// The rows to run.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let runs = self.open.iter().filter(|(_, output)| !output.parked);
        let arrived = instant_of(self.job.accepted_at);
        runs.map(|(index, output)| self.row(*index, arrived, output.suspect))
            .collect()
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

    /// What the fleet is told of it; `None` for a request without outputs.
    pub(crate) fn work(&self) -> Option<CurrentWork> {
        let first = self.job.outputs.first()?;
        Some(CurrentWork {
            output: self.job.job.output(first.index),
            ack_subject: self.lease.ack_subject(),
            since: self.held_since,
        })
    }

    fn output(&self, index: OutputIndex) -> Option<&OutputRequest> {
        self.job.outputs.iter().find(|output| output.index == index)
    }

    /// The request's message with `output` alone, for a dead letter.
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

    /// The denoise message of `output`.
    pub(crate) fn denoise_job(
        &self,
        output: OutputId,
        prior: Prior,
        times: BatchTimes,
    ) -> Option<DenoiseJob> {
        let request = self.output(output.index)?;
        Some(DenoiseJob {
            output,
            prompt: self.job.prompt.clone(),
            seed: request.seed,
            size: self.job.size,
            format: self.job.format,
            denoise: self.job.denoise,
            prior: prior.tokens,
            usage: prior.usage,
            prior_id: None,
            accepted_at: self.job.accepted_at,
            ar_started_at: times.started_at,
            ar_finished_at: times.finished_at,
            deadline_at: self.job.deadline_at,
        })
    }

    /// When the gateway accepted it.
    pub(crate) fn accepted_at(&self) -> UnixMillis {
        self.job.accepted_at
    }

    /// Whether work on it may start at `now`.
    pub(crate) fn in_time(&self, now: UnixMillis) -> bool {
        in_time(self.job.deadline_at, now)
    }

    /// Outputs that have ended by other hands than ours.
    pub(crate) fn ended(&self) -> Vec<OutputId> {
        let ended = self.open.iter().filter(|(_, open)| open.watch.has_ended());
        ended
            .map(|(index, _)| self.job.job.output(*index))
            .collect()
    }

    /// Whether `output` still needs its prior.
    pub(crate) fn needs(&self, output: OutputId) -> bool {
        self.open
            .get(&output.index)
            .is_some_and(|open| !open.watch.has_ended())
    }

    /// Every output that is open.
    pub(crate) fn open(&self) -> Vec<OutputId> {
        let open = self.open.keys();
        open.map(|index| self.job.job.output(*index)).collect()
    }

    /// `output` failed once and runs alone from now on. It has had its turn, and waits anew.
    pub(crate) fn suspect(&mut self, output: OutputId) -> Option<Row> {
        self.open.get_mut(&output.index)?.suspect = true;
        Some(self.row(output.index, now(), true))
    }

    /// `output` is left to another worker.
    pub(crate) fn park(&mut self, output: OutputId) {
        if let Some(open) = self.open.get_mut(&output.index) {
            open.parked = true;
        }
    }

    /// Another batcher has started on `output`: it holds the message by now.
    pub(crate) fn park_for_another(&mut self, output: OutputId) {
        self.foreign = true;
        self.park(output);
    }

    /// `output` is on its way or answered.
    pub(crate) fn settle(&mut self, output: OutputId) {
        self.open.remove(&output.index);
    }

    /// What is to be done with its message now.
    pub(crate) fn rest(&self) -> Rest {
        if self.open.is_empty() {
            Rest::Ack
        } else if !self.open.values().all(|open| open.parked) {
            Rest::Keep
        } else if self.foreign {
            Rest::LetGo
        } else {
            Rest::GiveBack
        }
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
