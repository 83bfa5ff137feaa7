//! What a gateway sees of its deployment, and what it shows of itself. One task looks every second and writes down
//! whether a request would find its streams and its workers; `/readyz`, admission and every new job read that, so
//! that a flood of requests asks the broker no more than a quiet hour.

use std::{net::SocketAddr, time::Duration};

use messaging::{Bus, BusError, Presence, ProvisionError, Queues, Results, ResultsStore};
use protocol::{Role, WorkerId, WorkerPresence, WorkerState, topology::Topology};
use service::{Health, exit::chain, health::Readiness};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    outcome::ResultTtl,
    rooms::{self, RESULTS_FILL_PERCENT_MAX, Rooms},
};

/// How old an answer of `/readyz` can be.
const READINESS_PERIOD: Duration = Duration::from_secs(1);

/// One look: as many requests as there are streams, consumers and buckets. The bus gives up on one after 2 s.
const READINESS_LOOK_TIME_MAX: Duration = Duration::from_secs(3);

/// How long new jobs are still taken while the broker is connected and silent: a cluster elects for 4 to 8 s, and a
/// publish is tried for longer than this. `/readyz` tells the truth meanwhile.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Looks and shows.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Whether a new job is worth a try although the gateway is not ready.
    pub(crate) patient: watch::Sender<bool>,
    pub(crate) bus: Bus,
    pub(crate) health: Health,
    pub(crate) results: Results,
    pub(crate) rooms: Rooms,
    pub(crate) result_ttl: ResultTtl,
    pub(crate) job_timeout: Duration,
    pub(crate) own: Own,
    pub(crate) tracker: TaskTracker,
    /// No new jobs from here on.
    pub(crate) stop: CancellationToken,
    /// The jobs' tasks end here, and the gateway goes out of sight.
    pub(crate) gone: CancellationToken,
}

/// What a gateway tells of itself.
#[derive(Debug, Clone)]
pub(crate) struct Own {
    pub(crate) id: WorkerId,
    pub(crate) health_address: SocketAddr,
}

/// Why one look found nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Unseen {
    /// The broker did not say: it elects, or restarts.
    Silent(String),
    /// What it said is wrong.
    Wrong(String),
}

/// What one look found.
#[derive(Debug, Default)]
struct Seen {
    workers: Vec<WorkerPresence>,
    queues: Queues,
    /// None where the stream was deleted in this moment.
    results: Option<ResultsStore>,
}

impl Watch {
    /// Looks until `stop`, then says that the gateway stops, and until `gone` how much is still open here.
    pub(crate) async fn keep(self) {
        let topology = Topology::new(self.bus.prefix());
        let mut ticks = interval(READINESS_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut connection = self.bus.connection();
        let (mut presence, mut ready_at) = (None, None);
        loop {
            let found = tokio::select! {
                () = self.stop.cancelled() => break,
                found = look(&self.bus, &topology) => found,
            };
            // Before the streams are there nobody could see it.
            let streams_are_there = found.is_ok();
            let silent = matches!(found, Err(Unseen::Silent(_)));
            let found = self.take_in(found);
            let now = Instant::now();
            if found == Readiness::Ready {
                ready_at = Some(now);
            }
            self.patient
                .send_replace(silent && ready_at.is_some_and(|at| now < at + SILENCE_MAX));
            if streams_are_there || presence.is_some() {
                self.show(&mut presence, &found);
            }
            note(&self.health, found);
            tokio::select! {
                () = self.stop.cancelled() => break,
                // A lost connection is known before the next tick; the end of the bus is the end of the process.
                _ = connection.changed() => {}
                _ = ticks.tick() => {}
            }
        }
        let stopping = Readiness::NotReady("the gateway is stopping".to_owned());
        note(&self.health, stopping.clone());
        while presence.is_some() && !self.gone.is_cancelled() {
            self.show(&mut presence, &stopping);
            tokio::select! {
                () = self.gone.cancelled() => {}
                _ = ticks.tick() => {}
            }
        }
    }

    /// Hands on what was seen, and judges it.
    fn take_in(&self, found: Result<Seen, Unseen>) -> Readiness {
        let seen = match found {
            Ok(seen) => seen,
            Err(Unseen::Silent(reason) | Unseen::Wrong(reason)) => {
                return Readiness::NotReady(reason);
            }
        };
        if let Some(results) = seen.results {
            self.result_ttl.set(results.age_max);
            self.rooms.look_at_results(results);
        }
        let finished = self.results.pictures_announced();
        let look = rooms::look(&self.own.id, &seen.workers, seen.queues, finished);
        self.rooms.look(look);
        judge(&seen, self.job_timeout, self.result_ttl.get())
    }

    /// Tells the deployment how this gateway is.
    fn show(&self, presence: &mut Option<Presence>, readiness: &Readiness) {
        let outputs_open = u32::try_from(self.rooms.open()).unwrap_or(u32::MAX);
        let now = WorkerPresence {
            worker: self.own.id.clone(),
            role: Role::Gateway,
            state: match outputs_open {
                _ if self.stop.is_cancelled() => WorkerState::Draining,
                0 => WorkerState::Idle,
                _ => WorkerState::Busy,
            },
            reason: match readiness {
                Readiness::Ready => None,
                Readiness::NotReady(reason) => Some(reason.clone()),
            },
            host: service::host::name(),
            process: std::process::id(),
            device: None,
            model_revision: None,
            health_address: Some(self.own.health_address),
            held: Vec::new(),
            outputs_open,
        };
        match presence {
            Some(presence) => presence.update_to(now),
            None => {
                let gone = self.gone.clone();
                *presence = Some(Presence::start(&self.bus, now, &self.tracker, gone));
            }
        }
    }
}

/// Writes down and tells the log what has changed.
fn note(health: &Health, found: Readiness) {
    if health.snapshot() == found {
        return;
    }
    match found {
        Readiness::Ready => {
            tracing::info!("ready");
            health.set_ready();
        }
        Readiness::NotReady(reason) => {
            tracing::info!(reason, "not ready");
            health.set_not_ready(reason);
        }
    }
}

/// What is there, or what is missing.
async fn look(bus: &Bus, topology: &Topology) -> Result<Seen, Unseen> {
    if !bus.connection().borrow().up {
        let reason = "the message broker is not connected";
        return Err(Unseen::Silent(reason.to_owned()));
    }
    let look = async {
        bus.verify(topology).await?;
        let seen = tokio::try_join!(bus.workers(), bus.queues(), bus.results_store());
        let (workers, queues, results) = seen?;
        Ok(Seen {
            workers,
            queues,
            results,
        })
    };
    match timeout(READINESS_LOOK_TIME_MAX, look).await {
        Ok(looked) => looked.map_err(|error| unseen(&error)),
        Err(_) => Err(Unseen::Silent(
            "the message broker does not answer in time".to_owned(),
        )),
    }
}

fn unseen(error: &ProvisionError) -> Unseen {
    match error {
        ProvisionError::Bus(BusError::Unavailable { .. }) => Unseen::Silent(chain(error)),
        _ => Unseen::Wrong(chain(error)),
    }
}

/// Ready with at least one worker of each role that takes work, and with results that outlive their jobs and leave room
/// for more.
fn judge(seen: &Seen, job_timeout: Duration, result_ttl: Duration) -> Readiness {
    if job_timeout > result_ttl {
        // The first result of a job could have run out before its last one comes.
        return Readiness::NotReady(format!(
            "--job-timeout-s is {}, and the broker keeps results for {} s only",
            job_timeout.as_secs_f64(),
            result_ttl.as_secs_f64()
        ));
    }
    let filled = seen.results.map_or(0, rooms::fill_percent);
    if filled >= RESULTS_FILL_PERCENT_MAX {
        return Readiness::NotReady(format!(
            "results fill {filled} % of their stream, and no job is let in from {RESULTS_FILL_PERCENT_MAX} % on"
        ));
    }
    for role in [Role::ArBatcher, Role::Denoiser] {
        let of_role = || seen.workers.iter().filter(|worker| worker.role == role);
        if of_role().any(|worker| worker.state.takes_work()) {
            continue;
        }
        let quarantined = of_role().filter(|worker| worker.state == WorkerState::Quarantined);
        return Readiness::NotReady(match quarantined.count() {
            0 => format!("no {role} is ready"),
            number => format!("no {role} is ready: {number} in quarantine"),
        });
    }
    Readiness::Ready
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(role: Role, state: WorkerState) -> WorkerPresence {
        WorkerPresence {
            worker: WorkerId::generate(role),
            role,
            state,
            reason: None,
            host: "here".to_owned(),
            process: 1,
            device: Some("cpu".to_owned()),
            model_revision: None,
            health_address: None,
            held: Vec::new(),
            outputs_open: 0,
        }
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn it_takes_one_working_worker_of_each_role_a11_a58() {
        use Role::{ArBatcher, Denoiser, Gateway};
        use WorkerState::{Busy, Draining, Idle, Loading, Quarantined};
        let no_batcher = Some("no ar-batcher is ready");
        let cases: [(&[(Role, WorkerState)], _); 9] = [
            (&[], no_batcher),
            (&[(ArBatcher, Idle)], Some("no denoiser is ready")),
            (&[(Denoiser, Idle)], no_batcher),
            (&[(Gateway, Idle), (Denoiser, Idle)], no_batcher),
            (&[(ArBatcher, Loading), (Denoiser, Idle)], no_batcher),
            (
                &[(ArBatcher, Busy), (Denoiser, Draining)],
                Some("no denoiser is ready"),
            ),
            (
                &[(ArBatcher, Busy), (Denoiser, Draining), (Denoiser, Busy)],
                None,
            ),
            (
                &[
                    (ArBatcher, Busy),
                    (Denoiser, Quarantined),
                    (Denoiser, Loading),
                ],
                Some("no denoiser is ready: 1 in quarantine"),
            ),
            (
                &[(ArBatcher, Busy), (Denoiser, Quarantined), (Denoiser, Idle)],
                None,
            ),
        ];
        for (workers, reason) in cases {
            let present: Vec<_> = workers
                .iter()
                .map(|(role, state)| worker(*role, *state))
                .collect();
            let wanted = reason.map_or(Readiness::Ready, |reason| {
                Readiness::NotReady(reason.to_owned())
            });
            let seen = Seen {
                workers: present,
                ..Seen::default()
            };
            assert_eq!(judge(&seen, MINUTE, MINUTE), wanted, "{workers:?}");
        }
    }

    fn with_workers() -> Seen {
        let workers = [Role::ArBatcher, Role::Denoiser].map(|role| worker(role, WorkerState::Idle));
        Seen {
            workers: workers.to_vec(),
            ..Seen::default()
        }
    }

    #[test]
    fn results_that_run_out_before_their_job_does_are_no_service() {
        let seen = with_workers();
        assert_eq!(judge(&seen, MINUTE, MINUTE), Readiness::Ready);
        let reason = "--job-timeout-s is 120, and the broker keeps results for 60 s only";
        assert_eq!(
            judge(&seen, 2 * MINUTE, MINUTE),
            Readiness::NotReady(reason.to_owned())
        );
    }

    #[test]
    fn results_that_leave_no_room_are_no_service() {
        let mut seen = with_workers();
        let mut filled = |bytes| {
            seen.results = Some(ResultsStore {
                age_max: MINUTE,
                bytes,
                bytes_max: Some(1_000),
            });
            judge(&seen, MINUTE, MINUTE)
        };
        assert_eq!(filled(799), Readiness::Ready);
        let reason = "results fill 80 % of their stream, and no job is let in from 80 % on";
        assert_eq!(filled(800), Readiness::NotReady(reason.to_owned()));
    }
}
