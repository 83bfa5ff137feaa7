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
    /// Locked for single map operations only.
    heard: Arc<Mutex<Heard>>,
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

/// How many ends are remembered: some seconds of the fastest fleet, and a message comes within milliseconds of the end
/// that it was too late for.
const REMEMBERED_MAX: usize = 4_096;

/// What the listener and the watches share.
#[derive(Debug, Default)]
struct Heard {
    /// Bounded by what its process holds.
    watched: BTreeMap<OutputId, Watched>,
    /// Ends that were heard of, watched or not; the older half goes when the newer one is full.
    newer: BTreeSet<OutputId>,
    older: BTreeSet<OutputId>,
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
            heard: Arc::default(),
            ended: watch::Sender::new(0),
            noticed: watch::Sender::default(),
        };
        let listener = ends.clone().listen(bus.clone(), notices);
        tracker.spawn(async move {
            shutdown.run_until_cancelled(listener).await;
        });
        Ok(ends)
    }

    /// Watches `output`. An end of the last seconds is known at once; for others, watch first and then look.
    pub fn watch(&self, output: OutputId) -> EndWatch {
        let mut heard = self.lock();
        let has_ended = heard.remembers(output);
        let watched = heard.watched.entry(output).or_default();
        watched.watches += 1;
        if has_ended {
            watched.ended.cancel();
        }
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

    fn lock(&self) -> MutexGuard<'_, Heard> {
        // A panic between two map operations leaves whole maps.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, output: OutputId) {
        let mut heard = self.lock();
        heard.remember(output);
        let watched = heard.watched.get(&output);
        let ended = watched.map(|watched| watched.ended.clone());
        drop(heard);
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
        let jobs: BTreeSet<JobId> = self
            .lock()
            .watched
            .keys()
            .map(|output| output.job)
            .collect();
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

impl Heard {
    fn remember(&mut self, output: OutputId) {
        if self.newer.len() >= REMEMBERED_MAX / 2 {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.insert(output);
    }

    fn remembers(&self, output: OutputId) -> bool {
        self.newer.contains(&output) || self.older.contains(&output)
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
        let mut heard = self.ends.lock();
        if let Entry::Occupied(mut entry) = heard.watched.entry(self.output) {
            entry.get_mut().watches -= 1;
            if entry.get().watches == 0 {
                entry.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::OutputIndex;

    use super::*;

    #[test]
    fn the_latest_ends_are_remembered_and_no_more_than_so_many() {
        let output = |job: usize| JobId::from_u128(job as u128).output(OutputIndex::FIRST);
        let mut heard = Heard::default();
        for job in 0..3 * REMEMBERED_MAX {
            heard.remember(output(job));
            assert!(heard.newer.len() + heard.older.len() <= REMEMBERED_MAX);
            let latest = job.saturating_sub(REMEMBERED_MAX / 2 - 1)..=job;
            assert!(heard.remembers(output(*latest.start())) && heard.remembers(output(job)));
        }
        assert!(!heard.remembers(output(0)));
    }
}
