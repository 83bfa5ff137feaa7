//! The loop: hear what happened, let `batching` decide, hand the work to tasks. No rule lives here, and nothing here
//! waits for the broker or an engine: the tasks do, and tell what came of it.
//!
//! A request's message is acked only when every output of it is stored as a denoise message or as a result. Until
//! then it is ours by progress acks, and a batcher's death gives it to another, where the outputs already fanned out
//! are known by their lives and results.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use batching::{Action, BatchFormer, BatchId, Event, Limits, Policy};
use messaging::Delivery;
use protocol::{JobId, OutputId, PriorityClass, Subject, UnixMillis, WorkerState};
use service::{Health, RetryArgs};
use tokio::{
    sync::mpsc,
    time::{Instant, interval},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use crate::{
    admit,
    bench::Bench,
    engine::{EngineError, PriorEngine},
    request::Held,
    settle::REST,
};

mod ahead;
mod engines;
mod hands;
mod let_go;
mod passing;
mod queues;
mod settling;
mod starting;
mod telling;

pub(crate) use queues::ByClass;

use ahead::Ahead;
use engines::Engines;
use hands::{Hands, News};

/// How often what is held is looked through: for leases that were lost and deadlines that passed unheard.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// Outputs that came with their prior tokens and are being fanned out: each is a millisecond of the broker's, and they
/// may be this many more than the denoise stage has room for.
const PASSING_MAX: usize = 4;

/// What the driver works with.
pub(crate) struct Parts {
    pub(crate) bench: Arc<Bench>,
    /// At least one.
    pub(crate) engines: Vec<Arc<dyn PriorEngine>>,
    pub(crate) limits: Limits,
    /// Outputs at the denoise stage, instead of the rule's.
    pub(crate) ahead_max: Option<u64>,
    pub(crate) retry: RetryArgs,
    pub(crate) health: Health,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// A batch on an engine.
struct Running {
    engine: usize,
    outputs: Vec<OutputId>,
    started_at: UnixMillis,
    /// Of this batch alone.
    stop: CancellationToken,
    /// It was told to stop because nobody needs it any more.
    unneeded: bool,
}

pub(crate) struct Driver {
    bench: Arc<Bench>,
    retry: RetryArgs,
    health: Health,
    stop: CancellationToken,
    hands: Hands,
    news: mpsc::Receiver<News>,
    engines: Engines,
    /// Of rows that need an engine.
    former: BatchFormer,
    /// Of rows that came with their prior tokens and only wait for room.
    passing: BatchFormer,
    ahead: Ahead,
    /// On their way in, with their class. Bounded: no more are asked for than are wanted.
    admitting: HashMap<JobId, PriorityClass>,
    /// Bounded by what is wanted, what runs and what settles.
    held: HashMap<JobId, Held>,
    running: HashMap<BatchId, Running>,
    /// Tasks that settle an output, and how many of them keep the driver from asking for more.
    settling: usize,
    settling_max: usize,
    wake_at: Option<Instant>,
    shown: telling::Shown,
}

impl Driver {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts {
            bench,
            engines,
            limits,
            ahead_max,
            retry,
            health,
            tracker,
            stop,
        } = parts;
        let (hands, news) = Hands::new(tracker);
        let passing = Limits {
            policy: Policy::Continuous,
            slots: vec![PASSING_MAX],
            waiting_max: limits.waiting_max,
        };
        Self {
            engines: Engines::new(engines, retry.failures_max),
            ahead: Ahead::new(ahead_max, bench.ends.notices()),
            settling_max: limits.slots.iter().sum::<usize>().max(1),
            former: BatchFormer::new(limits),
            passing: BatchFormer::new(passing),
            bench,
            retry,
            health,
            stop,
            hands,
            news,
            admitting: HashMap::new(),
            held: HashMap::new(),
            running: HashMap::new(),
            settling: 0,
            wake_at: None,
            shown: telling::Shown::default(),
        }
    }

    /// Runs until told to stop; an error means that an engine is gone. Either way what is held goes back.
    pub(crate) async fn run(mut self, mut queues: ByClass) -> Result<(), EngineError> {
        let stop = self.stop.clone();
        let outcome = stop.run_until_cancelled(self.drive(&mut queues)).await;
        self.show(WorkerState::Draining);
        self.give_back().await;
        self.hands.over();
        queues.close().await;
        match outcome {
            None => Ok(()),
            Some(Err(error)) => Err(error),
            Some(Ok(never)) => match never {},
        }
    }

    async fn drive(&mut self, queues: &mut ByClass) -> Result<Infallible, EngineError> {
        let mut ends = self.bench.ends.changes();
        let (mut look, mut tell, mut look_ahead) = (
            interval(LOOK_PERIOD),
            interval(telling::TELL_PERIOD),
            interval(ahead::BACKLOG_LOOK_PERIOD),
        );
        loop {
            let wanted = self.wanted();
            tokio::select! {
                // The sender lives in the hands.
                Some(news) = self.news.recv() => self.hear(news)?,
                delivery = queues.next(wanted) => self.arrived(delivery),
                // The senders live in the membership.
                _ = ends.changed() => self.look_through(),
                _ = self.ahead.end_noticed() => self.see_room(),
                _ = look.tick() => self.look_through(),
                _ = tell.tick() => self.tell_waiting(),
                _ = look_ahead.tick() => self.look_ahead(),
                () = sleep_until(self.wake_at) => self.apply(Event::Woken),
            }
            if self.engines.newly_all_down() {
                self.give_back().await;
                self.tell_quarantine();
            }
        }
    }

    /// Of which classes another request is wanted. None while a batch does not end although it was told to: the engine
    /// may hang, and another batcher's may not. And none while the broker takes longer to store outputs than the
    /// engines to make them.
    fn wanted(&self) -> [bool; 3] {
        let hangs = self.running.values().any(|running| running.unneeded);
        let open = !self.engines.all_down() && !hangs && self.settling < self.settling_max;
        PriorityClass::ALL.map(|class| {
            let coming = self.admitting.values().filter(|of| **of == class).count();
            let wanted = self.former.wanted(class).min(self.passing.wanted(class));
            open && coming < wanted
        })
    }

    fn hear(&mut self, news: News) -> Result<(), EngineError> {
        match news {
            News::Admitted { job, held } => self.admitted(job, held),
            News::Ran(end) => self.ran(end)?,
            News::Settled {
                output,
                passed,
                fate,
            } => self.settled(output, passed, fate),
            News::Told { output, known } => self.told(output, known),
            News::Looked { mark, look } => self.looked_ahead(mark, look),
            News::Tested { engine, tested } => self.tested(engine, tested)?,
            News::Died(error) => return Err(EngineError::Gone(error.into())),
        }
        Ok(())
    }

    fn arrived(&mut self, delivery: Delivery) {
        let Subject::Ar(class, job) = delivery.subject else {
            tracing::error!(subject = %delivery.subject, "message under a subject of another queue");
            return delivery.lease.term("not an AR subject");
        };
        if self
            .held
            .get(&job)
            .is_some_and(|held| !held.lease.is_lost())
        {
            // Stored twice: the first one was out of the queue for a moment, and stays in it until its outputs are stored.
            tracing::info!(%job, "another message of a held request, acking it");
            return self.hands.ack(delivery.lease);
        }
        if self.held.contains_key(&job) || self.admitting.contains_key(&job) {
            // The first one may be gone with its stream, and this the only one that is left: it comes again when that is let go.
            tracing::info!(%job, "another message of a request that is lost or not held yet, giving it back");
            return delivery.lease.nak(Some(REST));
        }
        if !delivery.is_traced() {
            self.bench.counters.worker.untraced.inc();
        }
        self.admitting.insert(job, class);
        let (bench, span) = (Arc::clone(&self.bench), delivery.span());
        let admit = async move {
            let held = admit::admit(&bench, class, job, delivery).await;
            News::Admitted { job, held }
        };
        self.hands.task(admit.instrument(span));
    }

    fn admitted(&mut self, job: JobId, held: Option<Held>) {
        self.admitting.remove(&job);
        // A batcher without engines holds nothing: dropped, it goes back.
        let Some(held) = held.filter(|_| !self.engines.all_down()) else {
            return;
        };
        let (rows, passes) = (held.rows(), held.request.prior().is_some());
        self.held.insert(job, held);
        if passes {
            self.pass(Event::Arrived(rows));
        } else {
            self.apply(Event::Arrived(rows));
        }
        self.changed();
    }

    fn apply(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            self.wake_at = None;
            for action in self.former.apply(event, Instant::now().into_std()) {
                match action {
                    Action::WakeAt(at) => self.wake_at = Some(Instant::from_std(at)),
                    Action::Run {
                        batch,
                        engine,
                        rows,
                    } => {
                        self.ahead.started(rows.len());
                        if !self.start(batch, engine, &rows) {
                            events.push(Event::Finished(batch));
                        }
                    }
                }
            }
        }
    }

    /// Outputs on all engines.
    fn running_outputs(&self) -> usize {
        let running = self.running.values();
        running.map(|running| running.outputs.len()).sum()
    }

    /// What is being done for `output` here.
    fn held_of(&mut self, output: OutputId) -> Option<&mut Held> {
        self.held.get_mut(&output.job)
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "../../../shared/messaging/tests/common/mod.rs"]
mod broker;

#[cfg(test)]
mod tests;
