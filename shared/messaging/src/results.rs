//! Results matched to those who wait for them: one task that owns every waiting job.
//!
//! The server announces each stored result, headers only; the picture is then read at this process's own pace, so
//! that a burst of large pictures cannot cut it off as a slow consumer (1 of 20 pictures arrived that way,
//! measured). An announcement can be missed, in a reconnect or a change of leader, so each job is looked at every
//! [`SWEEP_PERIOD`] and at each reconnect: one small question a job, whatever its outputs, and a fetch for what has
//! ended only.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_nats::{Message as NatsMessage, Subscriber};
use futures::{
    StreamExt,
    future::{BoxFuture, FutureExt},
    stream::FuturesUnordered,
};
use protocol::{JobId, OutputId, OutputIndex, OutputResult, Progress, Subject, decode};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch},
    time::{MissedTickBehavior, interval},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    asking::Asking, bus::Bus, connection::Connection, error::BusError, publish::tells_of_picture,
};

/// Most watches at once in one process; more requests than this are refused rather than swept.
pub const WATCHES_MAX: usize = 1_024;

/// How long a missed announcement delays a result at most.
const SWEEP_PERIOD: Duration = Duration::from_secs(2);

/// Pictures in memory on their way in: 4 x 16 MB at most.
const FETCHES_MAX: usize = 4;

/// Jobs looked at at once. A look is a small question to one server, 0.3 ms of it: a thousand jobs take a tenth of a
/// second.
const LOOKS_MAX: usize = 4;

/// The latest progress of each output that has any.
pub type ProgressByOutput = BTreeMap<OutputIndex, Progress>;

/// As many jobs are being watched as may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{WATCHES_MAX} jobs are being watched already")]
pub struct ResultsFull;

/// Hands each job's results to whoever watches it. Clones share the task.
#[derive(Debug, Clone)]
pub struct Results {
    places: Arc<Semaphore>,
    waiters: mpsc::Sender<(JobId, Waiter)>,
    /// Grows with each announced picture.
    pictures: Arc<AtomicU64>,
}

/// One job's results as they come. Dropping it forgets the job.
#[derive(Debug)]
pub struct JobWatch {
    results: mpsc::Receiver<OutputResult>,
    progress: watch::Receiver<ProgressByOutput>,
}

/// Since when there is a job that somebody waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    /// Before it was watched: what has ended by then is looked up at once.
    Before,
    /// It is watched from its beginning.
    Now,
}

/// The task's side of a [`JobWatch`].
#[derive(Debug)]
struct Waiter {
    missing: BTreeSet<OutputIndex>,
    since: Since,
    results: mpsc::Sender<OutputResult>,
    progress: watch::Sender<ProgressByOutput>,
    /// Held until the task forgets the watch: it bounds the task's map, not the callers.
    _place: OwnedSemaphorePermit,
}

impl Results {
    /// Listens for results until `shutdown`; a watch then ends early.
    pub async fn start(
        bus: &Bus,
        tracker: &TaskTracker,
        shutdown: CancellationToken,
    ) -> Result<Self, BusError> {
        let (waiters, waiters_in) = mpsc::channel(WATCHES_MAX);
        let pictures = Arc::<AtomicU64>::default();
        let matching = Matching {
            done: subscribe(bus, bus.prefix().done_pattern()).await?,
            progress: subscribe(bus, bus.prefix().progress_pattern()).await?,
            connection: bus.connection(),
            bus: bus.clone(),
            waiting: HashMap::new(),
            outputs: Asking::new(),
            fetches: FuturesUnordered::new(),
            jobs: Asking::new(),
            looks: FuturesUnordered::new(),
            pictures: Arc::clone(&pictures),
        };
        tracker.spawn(matching.run(waiters_in, shutdown));
        Ok(Self {
            places: Arc::new(Semaphore::new(WATCHES_MAX)),
            waiters,
            pictures,
        })
    }

    /// Pictures that the whole deployment was heard to finish since the start. Errors do not count: a cancel or a
    /// deadline ends outputs that nobody worked on.
    pub fn pictures_announced(&self) -> u64 {
        self.pictures.load(Ordering::Relaxed)
    }

    /// Watches the outputs `0..outputs` of a `job` that may be queued already.
    pub fn watch(&self, job: JobId, outputs: u8) -> Result<JobWatch, ResultsFull> {
        self.watch_since(job, outputs, Since::Before)
    }

    /// The same for a job that nobody has queued yet: nothing of it can have ended.
    pub fn watch_new(&self, job: JobId, outputs: u8) -> Result<JobWatch, ResultsFull> {
        self.watch_since(job, outputs, Since::Now)
    }

    fn watch_since(&self, job: JobId, outputs: u8, since: Since) -> Result<JobWatch, ResultsFull> {
        let place = Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| ResultsFull)?;
        let missing: BTreeSet<OutputIndex> = OutputIndex::first(outputs).collect();
        // Room for every output: the task never waits for a watcher.
        let (results, results_in) = mpsc::channel(missing.len().max(1));
        let (progress, progress_in) = watch::channel(ProgressByOutput::new());
        let waiter = Waiter {
            missing,
            since,
            results,
            progress,
            _place: place,
        };
        // A full channel cannot be, it has a place per permit; a closed one means shutdown, and the watch ends.
        if let Err(refused) = self.waiters.try_send((job, waiter)) {
            tracing::debug!(%job, %refused, "watch ends at once");
        }
        Ok(JobWatch {
            results: results_in,
            progress: progress_in,
        })
    }
}

async fn subscribe(bus: &Bus, pattern: String) -> Result<Subscriber, BusError> {
    let subscribed = bus.client().subscribe(pattern.clone()).await;
    subscribed.map_err(|source| BusError::Unavailable {
        what: pattern,
        source: source.into(),
    })
}

impl JobWatch {
    /// The next result, each output's once, in any order; `None` when all came, and at shutdown. Cancellation safe.
    pub async fn next(&mut self) -> Option<OutputResult> {
        self.results.recv().await
    }

    /// The latest progress of each output, and changes of it.
    pub fn progress(&self) -> watch::Receiver<ProgressByOutput> {
        self.progress.clone()
    }
}

type Fetch = BoxFuture<'static, (OutputId, Result<Option<OutputResult>, BusError>)>;
type Look = BoxFuture<'static, (JobId, Result<BTreeSet<OutputIndex>, BusError>)>;

struct Matching {
    bus: Bus,
    done: Subscriber,
    progress: Subscriber,
    connection: watch::Receiver<Connection>,
    /// At most [`WATCHES_MAX`] waiters in all. Two may wait for one job.
    waiting: HashMap<JobId, Vec<Waiter>>,
    /// To be fetched: announced ones first, then those that a look has found.
    outputs: Asking<OutputId>,
    fetches: FuturesUnordered<Fetch>,
    /// To be looked at.
    jobs: Asking<JobId>,
    looks: FuturesUnordered<Look>,
    pictures: Arc<AtomicU64>,
}

impl Matching {
    async fn run(
        mut self,
        mut waiters: mpsc::Receiver<(JobId, Waiter)>,
        shutdown: CancellationToken,
    ) {
        let mut sweep = interval(SWEEP_PERIOD);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut epoch = self.connection.borrow_and_update().epoch;
        loop {
            self.start_fetches();
            self.start_looks();
            tokio::select! {
                // New watches first: what is announced next may be theirs.
                biased;
                () = shutdown.cancelled() => return,
                waiter = waiters.recv() => match waiter {
                    Some((job, waiter)) => self.add(job, waiter),
                    None => return,
                },
                Some((output, fetched)) = self.fetches.next() => self.fetched(output, fetched),
                Some((job, ended)) = self.looks.next() => self.looked(job, ended),
                notice = self.done.next() => match notice {
                    Some(notice) => self.announced(&notice),
                    None => return,
                },
                progress = self.progress.next() => match progress {
                    Some(message) => self.progressed(&message),
                    None => return,
                },
                changed = self.connection.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = *self.connection.borrow_and_update();
                    if now.up && now.epoch != epoch {
                        epoch = now.epoch;
                        self.sweep();
                    }
                }
                _ = sweep.tick() => self.sweep(),
            }
        }
    }

    fn add(&mut self, job: JobId, waiter: Waiter) {
        if waiter.missing.is_empty() {
            return;
        }
        if waiter.since == Since::Before {
            self.jobs.want_now(job);
        }
        self.waiting.entry(job).or_default().push(waiter);
    }

    fn announced(&mut self, notice: &NatsMessage) {
        let Ok(Subject::Done(output)) = self.bus.prefix().parse(&notice.subject) else {
            return;
        };
        if notice.headers.as_ref().is_some_and(tells_of_picture) {
            self.pictures.fetch_add(1, Ordering::Relaxed);
        }
        if self.is_missing(output) {
            self.outputs.want_now(output);
        }
    }

    fn progressed(&self, message: &NatsMessage) {
        let Ok(progress) = decode::<Progress>(&message.payload) else {
            return;
        };
        for waiter in self.waiting.get(&progress.output.job).into_iter().flatten() {
            waiter.progress.send_modify(|latest| {
                latest.insert(progress.output.index, progress);
            });
        }
    }

    /// Looks at every job, and forgets who does not wait any more.
    fn sweep(&mut self) {
        self.waiting.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.results.is_closed());
            !waiters.is_empty()
        });
        self.waiting.keys().for_each(|&job| self.jobs.want(job));
    }

    fn start_looks(&mut self) {
        while self.looks.len() < LOOKS_MAX {
            let Some(job) = self.jobs.next() else { return };
            if !self.waiting.contains_key(&job) {
                self.jobs.answered(job);
                continue;
            }
            let bus = self.bus.clone();
            self.looks
                .push(async move { (job, bus.ended_outputs(job).await) }.boxed());
        }
    }

    fn looked(&mut self, job: JobId, ended: Result<BTreeSet<OutputIndex>, BusError>) {
        if self.jobs.answered(job) {
            self.jobs.want(job);
        }
        match ended {
            Ok(ended) => {
                let ended = ended.into_iter().map(|index| job.output(index));
                for output in ended {
                    if self.is_missing(output) {
                        self.outputs.want(output);
                    }
                }
            }
            // The next sweep asks again.
            Err(error) => tracing::debug!(%job, %error, "a job was not looked at"),
        }
    }

    fn start_fetches(&mut self) {
        while self.fetches.len() < FETCHES_MAX {
            let Some(output) = self.outputs.next() else {
                return;
            };
            if !self.is_missing(output) {
                self.outputs.answered(output);
                continue;
            }
            let bus = self.bus.clone();
            self.fetches
                .push(async move { (output, bus.result(output).await) }.boxed());
        }
    }

    fn fetched(&mut self, output: OutputId, fetched: Result<Option<OutputResult>, BusError>) {
        let again = self.outputs.answered(output);
        match fetched {
            Ok(Some(result)) => self.hand_out(output, &result),
            Ok(None) if again => self.outputs.want(output),
            Ok(None) => {}
            // The next sweep asks again.
            Err(error) => tracing::debug!(%output, %error, "result was not read"),
        }
    }

    fn hand_out(&mut self, output: OutputId, result: &OutputResult) {
        let Some(waiters) = self.waiting.get_mut(&output.job) else {
            return;
        };
        for waiter in waiters.iter_mut() {
            if waiter.missing.remove(&output.index)
                && waiter.results.try_send(result.clone()).is_err()
            {
                tracing::debug!(%output, "result came for nobody");
            }
        }
        waiters.retain(|waiter| !waiter.missing.is_empty());
        if waiters.is_empty() {
            self.waiting.remove(&output.job);
        }
    }

    fn is_missing(&self, output: OutputId) -> bool {
        let waiters = self.waiting.get(&output.job);
        waiters.is_some_and(|waiters| {
            waiters
                .iter()
                .any(|waiter| waiter.missing.contains(&output.index))
        })
    }
}
