//! Room for outputs: `batching`'s rule of admission behind a lock, and the places it hands out.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use batching::admission::{Admission, Look};
use messaging::{Queues, ResultsStore};
use protocol::{ErrorCode, Role, Tenant, WorkerId, WorkerPresence};
use service::metrics::number;
use tokio::time::Instant;

use crate::{counters::Counters, reply::ApiError};

/// Percent of their stream that results may fill before no more jobs are let in: what is accepted needs the rest, and
/// where not even an error can be stored, no deadline and no cancel ends anything.
pub(crate) const RESULTS_FILL_PERCENT_MAX: u64 = 80;

/// When to come back to a deployment whose results are in the way. They run out by age, at the rate at which they came,
/// so a sixtieth of what fills an hour is gone by then.
const RETRY_AFTER_RESULTS_FULL: Duration = Duration::from_secs(60);

/// Lets requests in. Clones share the rule.
#[derive(Debug, Clone)]
pub(crate) struct Rooms {
    /// Locked for single calls only.
    admission: Arc<Mutex<Admission>>,
    /// Whether the last look found the results' stream nearly full.
    results_full: Arc<AtomicBool>,
    counters: Counters,
}

/// The places of one job's outputs; dropping it frees those that are left.
#[derive(Debug)]
pub(crate) struct Room {
    rooms: Rooms,
    outputs: u64,
    tenant: Option<Tenant>,
    /// Whether its job was queued, so that its ends count.
    queued: bool,
}

impl Rooms {
    pub(crate) fn new(outputs_max: u32, counters: Counters) -> Self {
        let now = Instant::now().into_std();
        Self {
            admission: Arc::new(Mutex::new(Admission::new(outputs_max.into(), now))),
            results_full: Arc::default(),
            counters,
        }
    }

    /// Places for `outputs` of this tenant's, or the refusal.
    pub(crate) fn admit(&self, outputs: u64, tenant: Option<&Tenant>) -> Result<Room, ApiError> {
        if self.results_are_full() {
            let text = "the stream of results is nearly full";
            return Err(self.refused(outputs, text, RETRY_AFTER_RESULTS_FULL));
        }
        let admitted = self.lock().admit(outputs, Instant::now().into_std());
        admitted.map_err(|after| self.refused(outputs, "too many outputs are open", after))?;
        Ok(Room {
            rooms: self.clone(),
            outputs,
            tenant: tenant.cloned(),
            queued: false,
        })
    }

    /// The refusal of a request that something else than the limit of outputs has no room for.
    pub(crate) fn refuse(&self, outputs: u64, text: &str) -> ApiError {
        let after = self.lock().refuse(outputs, Instant::now().into_std());
        self.refused(outputs, text, after)
    }

    fn refused(&self, outputs: u64, text: &str, after: Duration) -> ApiError {
        self.counters.outputs_refused.inc_by(outputs);
        ApiError::new(ErrorCode::QueueFull, text).retry_after(after)
    }

    pub(crate) fn look(&self, look: Look) {
        self.lock().look(look, Instant::now().into_std());
    }

    pub(crate) fn look_at_results(&self, results: ResultsStore) {
        let full = fill_percent(results) >= RESULTS_FILL_PERCENT_MAX;
        self.results_full.store(full, Ordering::Relaxed);
    }

    /// Whether every new job is refused.
    pub(crate) fn results_are_full(&self) -> bool {
        self.results_full.load(Ordering::Relaxed)
    }

    /// Outputs accepted here that have not ended.
    pub(crate) fn open(&self) -> u64 {
        self.lock().open_here()
    }

    /// Outputs that the deployment finishes in a second when it has work; `None` before any was seen.
    pub(crate) fn per_second(&self) -> Option<f64> {
        self.lock().per_second()
    }

    /// Outputs in one request, of those let in here since the start; 1 before there was any.
    pub(crate) fn outputs_per_request(&self) -> f64 {
        let Counters {
            jobs_accepted,
            outputs_accepted,
            ..
        } = &self.counters;
        let jobs = jobs_accepted.get().max(1);
        number(outputs_accepted.get().max(jobs)) / number(jobs)
    }

    fn lock(&self) -> MutexGuard<'_, Admission> {
        // A panic inside leaves counts that the next look corrects as far as they can be.
        self.admission
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    /// Its job is queued.
    pub(crate) fn queued(&mut self) {
        self.queued = true;
        let counters = &self.rooms.counters;
        counters.jobs_accepted.inc();
        counters.outputs_accepted.inc_by(self.outputs);
        let tenant = counters.tenants.of(self.tenant.as_ref());
        tenant.queued(self.outputs);
    }

    /// One of its outputs has ended.
    pub(crate) fn ended(&mut self) {
        self.free(1);
    }

    fn free(&mut self, outputs: u64) {
        let outputs = outputs.min(self.outputs);
        self.outputs -= outputs;
        self.rooms.lock().release(outputs);
        if self.queued {
            let counters = &self.rooms.counters;
            counters.outputs_ended.inc_by(outputs);
            counters.tenants.of(self.tenant.as_ref()).freed(outputs);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.free(self.outputs);
    }
}

/// How much of their stream the results fill.
pub(crate) fn fill_percent(results: ResultsStore) -> u64 {
    let bytes_max = results.bytes_max.filter(|&bytes| bytes > 0);
    bytes_max.map_or(0, |bytes_max| results.bytes.saturating_mul(100) / bytes_max)
}

/// What admission sees in a deployment, looked at by the gateway `own`. Pure.
pub(crate) fn look(
    own: &WorkerId,
    workers: &[WorkerPresence],
    queues: Queues,
    finished: u64,
) -> Look {
    let others = || {
        let of_gateways = |worker: &&WorkerPresence| worker.role == Role::Gateway;
        let gateways = workers.iter().filter(of_gateways);
        gateways.filter(|worker| worker.worker != *own)
    };
    let (ar, denoise) = (queues.ar, queues.denoise);
    let waiting = ar.queued.saturating_add(denoise.queued);
    Look {
        open_elsewhere: others().map(|worker| u64::from(worker.outputs_open)).sum(),
        // A request counts as one output: how many it has, its message says to who reads it.
        in_queues: waiting.saturating_add(ar.held).saturating_add(denoise.held),
        waiting,
        gateways: u32::try_from(others().count())
            .unwrap_or(u32::MAX)
            .saturating_add(1),
        finished,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use messaging::QueueDepth;
    use protocol::WorkerState;

    use super::*;

    pub(crate) fn presence(role: Role, outputs_open: u32) -> WorkerPresence {
        WorkerPresence {
            worker: WorkerId::generate(role),
            role,
            state: WorkerState::Idle,
            reason: None,
            host: "here".to_owned(),
            process: 1,
            device: None,
            model_revision: None,
            health_address: None,
            held: Vec::new(),
            outputs_open,
        }
    }

    #[test]
    fn the_other_gateways_and_the_queues_are_seen() {
        let own = presence(Role::Gateway, 5);
        let workers = [
            own.clone(),
            presence(Role::Gateway, 7),
            presence(Role::Gateway, 4),
            presence(Role::Denoiser, 0),
        ];
        let queues = Queues {
            ar: QueueDepth {
                queued: 1,
                held: 2,
                idle: 9,
            },
            denoise: QueueDepth {
                queued: 10,
                held: 20,
                idle: 9,
            },
        };
        let wanted = Look {
            open_elsewhere: 11,
            in_queues: 33,
            waiting: 11,
            gateways: 3,
            finished: 8,
        };
        assert_eq!(look(&own.worker, &workers, queues, 8), wanted);
    }

    #[test]
    fn results_that_fill_their_stream_let_nobody_in() {
        let rooms = Rooms::new(4, Counters::default());
        let store = |bytes, bytes_max| ResultsStore {
            age_max: Duration::from_secs(60),
            bytes,
            bytes_max,
        };
        for (results, full) in [
            (store(0, Some(1_000)), false),
            (store(799, Some(1_000)), false),
            (store(800, Some(1_000)), true),
            (store(u64::MAX, Some(1_000)), true),
            (store(u64::MAX, None), false),
            (store(1, Some(0)), false),
        ] {
            rooms.look_at_results(results);
            let refused = rooms.admit(1, None).err().map(|error| error.error().code);
            let wanted = full.then_some(ErrorCode::QueueFull);
            assert_eq!(refused, wanted, "{results:?}");
        }
        assert_eq!(rooms.counters.outputs_refused.get(), 2);
    }

    #[test]
    fn places_are_free_again_when_outputs_end_and_when_their_job_is_forgotten() {
        let rooms = Rooms::new(4, Counters::default());
        let mut room = rooms.admit(3, None).expect("there is room");
        assert!(rooms.admit(2, None).is_err());
        room.ended();
        assert_eq!(rooms.open(), 2);
        let second = rooms.admit(2, None).expect("there is room");
        drop(room);
        assert_eq!(rooms.open(), 2);
        drop(second);
        assert_eq!(rooms.open(), 0);
        assert_eq!(rooms.counters.outputs_refused.get(), 2);
        assert_eq!(rooms.counters.outputs_ended.get(), 0);
    }
}
