//! Tells a worker that an output it works on has ended: by a cancel, by its deadline, by another worker.
//!
//! The notice of a stored result is the stop signal, so that there is no second way to end an output. Notices can be
//! missed, so what is watched is also looked up every [`SWEEP_PERIOD`].

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_nats::Subscriber;
use futures::StreamExt;
use protocol::{JobId, OutputId, Subject};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{bus::Bus, error::BusError, publish::tells_of_picture};

/// How long a missed notice keeps a worker at work at most.
pub(crate) const SWEEP_PERIOD: Duration = Duration::from_secs(5);

/// Watches ends of outputs for one process. Clones share the task.
#[derive(Debug, Clone)]
pub struct Ends {
    /// Locked for single map operations only. Bounded by what its process holds.
    watched: Arc<Mutex<BTreeMap<OutputId, Watched>>>,
    /// Counts the ends of watched outputs.
    ended: watch::Sender<u64>,
    /// Counts the notices of any output's end.
    noticed: watch::Sender<Noticed>,
}

/// Ends of all outputs of the deployment, as far as their notices came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Noticed {
    /// With a picture or an error.
    pub ends: u64,
    /// With a picture: what denoisers did.
    pub pictures: u64,
}

/// An output that is watched.
#[derive(Debug, Default)]
struct Watched {
    ended: CancellationToken,
    watches: usize,
}

/// A watch of an output; the output is forgotten with the last one.
#[derive(Debug)]
pub struct EndWatch {
    ends: Ends,
    output: OutputId,
    ended: CancellationToken,
}

impl Ends {
    /// Listens until `shutdown`.
    pub async fn start(
        bus: &Bus,
        tracker: &TaskTracker,
        shutdown: CancellationToken,
    ) -> Result<Self, BusError> {
        let pattern = bus.prefix().done_pattern();
        let subscribed = bus.client().subscribe(pattern.clone()).await;
        let notices = subscribed.map_err(|source| BusError::Unavailable {
            what: pattern,
            source: source.into(),
        })?;
        let ends = Self {
            watched: Arc::default(),
            ended: watch::Sender::new(0),
            noticed: watch::Sender::default(),
        };
        let listener = ends.clone().listen(bus.clone(), notices);
        tracker.spawn(async move {
            shutdown.run_until_cancelled(listener).await;
        });
        Ok(ends)
    }

    /// Watches `output`. Watch first, then look whether it has ended already.
    pub fn watch(&self, output: OutputId) -> EndWatch {
        let mut watched = self.lock();
        let watched = watched.entry(output).or_default();
        watched.watches += 1;
        EndWatch {
            ends: self.clone(),
            output,
            ended: watched.ended.clone(),
        }
    }

    /// Changes when any watched output has ended, for who watches many.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.ended.subscribe()
    }

    /// Counts the ends of all outputs, watched or not.
    pub fn notices(&self) -> watch::Receiver<Noticed> {
        self.noticed.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<OutputId, Watched>> {
        // A panic between two map operations leaves a whole map.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, output: OutputId) {
        let watched = self.lock();
        let ended = watched.get(&output).map(|watched| watched.ended.clone());
        drop(watched);
        if let Some(ended) = ended {
            ended.cancel();
            self.ended.send_modify(|count| *count += 1);
        }
    }

    async fn listen(self, bus: Bus, mut notices: Subscriber) {
        let mut sweep = interval(SWEEP_PERIOD);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                notice = notices.next() => {
                    let Some(notice) = notice else { return };
                    if let Ok(Subject::Done(output)) = bus.prefix().parse(&notice.subject) {
                        let painted = notice.headers.as_ref().is_some_and(tells_of_picture);
                        self.noticed.send_modify(|noticed| {
                            noticed.ends += 1;
                            noticed.pictures += u64::from(painted);
                        });
                        self.end(output);
                    }
                }
                _ = sweep.tick() => self.sweep(&bus).await,
            }
        }
    }

    async fn sweep(&self, bus: &Bus) {
        let jobs: BTreeSet<JobId> = self.lock().keys().map(|output| output.job).collect();
        for job in jobs {
            match bus.ended_outputs(job).await {
                Ok(ended) => ended
                    .into_iter()
                    .for_each(|index| self.end(job.output(index))),
                // The next sweep asks again.
                Err(error) => return tracing::debug!(%job, %error, "ends were not looked up"),
            }
        }
    }
}

impl EndWatch {
    /// Whether the output is known to have ended.
    pub fn has_ended(&self) -> bool {
        self.ended.is_cancelled()
    }

    /// Returns when the output has ended.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

impl Drop for EndWatch {
    fn drop(&mut self) {
        let mut watched = self.ends.lock();
        if let Entry::Occupied(mut entry) = watched.entry(self.output) {
            entry.get_mut().watches -= 1;
            if entry.get().watches == 0 {
                entry.remove();
            }
        }
    }
}
