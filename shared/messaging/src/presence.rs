//! The sign of life of a worker: a key that the server drops by itself when it is not refreshed.

use std::time::Duration;

use async_nats::HeaderMap;
use protocol::{WorkerId, WorkerPresence, WorkerState, decode, encode, limits::PRESENCE_PERIOD};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    bus::{Bus, bucket_stream, bucket_subject, stored_sequence},
    error::BusError,
    publish::{Fence, Publish},
};

/// Between two messages of one process: a worker that paints tiny pictures would otherwise tell of each twice. One that is
/// told later is no longer given back at once if its worker dies within this time, and waits for its ack deadline.
const TELL_PERIOD_MIN: Duration = Duration::from_millis(100);

/// A worker's entry in the bucket of workers, kept fresh until shutdown.
#[derive(Debug)]
pub struct Presence {
    now: watch::Sender<WorkerPresence>,
}

impl Presence {
    /// Publishes `first` and keeps it alive until `shutdown`, which removes it.
    pub fn start(
        bus: &Bus,
        first: WorkerPresence,
        tracker: &TaskTracker,
        shutdown: CancellationToken,
    ) -> Self {
        let (now, changes) = watch::channel(first);
        tracker.spawn(refresh(bus.clone(), changes, shutdown));
        Self { now }
    }

    /// The worker takes no work for this reason; or takes work again. Either way it holds nothing.
    pub fn quarantine(&self, reason: Option<String>) {
        let state = match reason {
            Some(_) => WorkerState::Quarantined,
            None => WorkerState::Idle,
        };
        self.update(|now| (now.state, now.held, now.reason) = (state, Vec::new(), reason));
    }

    /// What is told, as it changes.
    pub fn watch(&self) -> watch::Receiver<WorkerPresence> {
        self.now.subscribe()
    }

    /// Changes what is told, and tells the broker at once, or `TELL_PERIOD_MIN` after it was told the last time.
    pub fn update(&self, change: impl FnOnce(&mut WorkerPresence)) {
        self.now.send_modify(change);
    }

    /// Tells the broker `now`, at once if that is something new.
    pub fn update_to(&self, now: WorkerPresence) {
        self.now.send_if_modified(|told| {
            let is_new = *told != now;
            *told = now;
            is_new
        });
    }
}

impl Bus {
    /// Takes a dead process off the list and returns its last words. `None` when it is not there, and when it
    /// changed meanwhile: of all who find it dead one gets them, and one that lives after all is left alone.
    pub async fn bury_worker(&self, worker: &WorkerId) -> Result<Option<WorkerPresence>, BusError> {
        let bucket = &self.topology().workers.name;
        let subject = bucket_subject(bucket, &worker.to_string());
        let Some(stored) = self.last(&bucket_stream(bucket), &subject).await? else {
            return Ok(None);
        };
        let what = || format!("presence of {worker}");
        let last_words = decode(&stored.payload).map_err(|source| BusError::Decode {
            what: what(),
            source,
        })?;
        let publish = Publish {
            after: stored_sequence(&stored),
            ..removal(subject)
        };
        match self.publish_once(&publish).await {
            Ok(Fence::First) => Ok(Some(last_words)),
            Ok(Fence::Taken) => Ok(None),
            Err(error) => Err(BusError::Unavailable {
                what: what(),
                source: error.into(),
            }),
        }
    }
}

/// Ends with `shutdown`, or refreshes the last state for as long as the process lives.
async fn refresh(
    bus: Bus,
    mut changes: watch::Receiver<WorkerPresence>,
    shutdown: CancellationToken,
) {
    let subject = bucket_subject(
        &bus.topology().workers.name,
        &changes.borrow().worker.to_string(),
    );
    let mut period = interval(PRESENCE_PERIOD);
    period.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = bus.connection();
    connection.mark_unchanged();
    let mut settable = true;
    let mut told_at: Option<Instant> = None;
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            changed = changes.changed(), if settable => settable = changed.is_ok(),
            // A restarted broker may have dropped the key meanwhile.
            changed = connection.changed() => if changed.is_err() { return },
            _ = period.tick() => {}
        }
        if let Some(told_at) = told_at {
            let rest = sleep_until(told_at + TELL_PERIOD_MIN);
            if shutdown.run_until_cancelled(rest).await.is_none() {
                break;
            }
        }
        if connection.borrow_and_update().up {
            told_at = Some(Instant::now());
            let now = changes.borrow_and_update().clone();
            let stay = publish(&bus, &subject, &now);
            tokio::select! {
                () = shutdown.cancelled() => break,
                () = stay => {}
            }
        }
    }
    remove(&bus, subject).await;
}

async fn publish(bus: &Bus, subject: &str, now: &WorkerPresence) {
    let payload = match encode(now) {
        Ok(bytes) => bytes.into(),
        Err(error) => return tracing::error!(%error, "presence has no bytes"),
    };
    let publish = Publish {
        subject: subject.to_owned(),
        id: None,
        after: None,
        headers: HeaderMap::new(),
        payload,
    };
    if let Err(error) = bus.publish_once(&publish).await {
        tracing::warn!(%error, worker = %now.worker, "presence was not refreshed");
    }
}

async fn remove(bus: &Bus, subject: String) {
    if let Err(error) = bus.publish_once(&removal(subject)).await {
        tracing::warn!(%error, "presence was not removed and runs out by itself");
    }
}

/// The marker that removes the key runs out like the key itself.
fn removal(subject: String) -> Publish {
    let mut headers = HeaderMap::new();
    headers.insert("KV-Operation", "PURGE");
    headers.insert("Nats-Rollup", "sub");
    Publish {
        subject,
        id: None,
        after: None,
        headers,
        payload: bytes::Bytes::new(),
    }
}
