//! Whether a request would find its streams and its workers. One task looks every second and writes it down;
//! `/readyz` and every new job read that, so that a flood of requests asks the broker no more than a quiet hour.

use std::time::Duration;

use messaging::Bus;
use protocol::{Role, WorkerPresence, WorkerState, topology::Topology};
use service::{Health, exit::chain, health::Readiness};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

/// How old an answer of `/readyz` can be.
const READINESS_PERIOD: Duration = Duration::from_secs(1);

/// One look: as many requests as there are streams, consumers and buckets. The bus gives up on one after 2 s.
const READINESS_LOOK_TIME_MAX: Duration = Duration::from_secs(3);

/// Looks until `stop`, then says that the gateway stops.
pub(crate) async fn keep(bus: Bus, health: Health, stop: CancellationToken) {
    let topology = Topology::new(bus.prefix());
    let mut ticks = interval(READINESS_PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = bus.connection();
    loop {
        let found = tokio::select! {
            () = stop.cancelled() => break,
            found = look(&bus, &topology) => found,
        };
        note(&health, found);
        tokio::select! {
            () = stop.cancelled() => break,
            // A lost connection is known before the next tick; the end of the bus is the end of the process.
            _ = connection.changed() => {}
            _ = ticks.tick() => {}
        }
    }
    health.set_not_ready("the gateway is stopping");
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

async fn look(bus: &Bus, topology: &Topology) -> Readiness {
    if !bus.connection().borrow().up {
        return Readiness::NotReady("the message broker is not connected".to_owned());
    }
    let look = async {
        bus.verify(topology).await.map_err(|error| chain(&error))?;
        bus.workers().await.map_err(|error| chain(&error))
    };
    match timeout(READINESS_LOOK_TIME_MAX, look).await {
        Ok(Ok(workers)) => judge(&workers),
        Ok(Err(reason)) => Readiness::NotReady(reason),
        Err(_) => Readiness::NotReady("the message broker does not answer in time".to_owned()),
    }
}

/// Ready with at least one worker of each role that takes work.
fn judge(workers: &[WorkerPresence]) -> Readiness {
    let takes_work =
        |worker: &&WorkerPresence| matches!(worker.state, WorkerState::Idle | WorkerState::Busy);
    let missing = [Role::ArBatcher, Role::Denoiser].into_iter().find(|role| {
        !workers
            .iter()
            .filter(takes_work)
            .any(|worker| worker.role == *role)
    });
    match missing {
        Some(role) => Readiness::NotReady(format!("no {role} is ready")),
        None => Readiness::Ready,
    }
}

#[cfg(test)]
mod tests {
    use protocol::WorkerId;

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

    #[test]
    fn it_takes_one_working_worker_of_each_role() {
        use WorkerState::{Busy, Draining, Idle, Loading};
        let cases: [(Vec<(Role, WorkerState)>, _); 6] = [
            (vec![], Some("no ar-batcher is ready")),
            (vec![(Role::ArBatcher, Idle)], Some("no denoiser is ready")),
            (vec![(Role::Denoiser, Idle)], Some("no ar-batcher is ready")),
            (
                vec![(Role::ArBatcher, Loading), (Role::Denoiser, Idle)],
                Some("no ar-batcher is ready"),
            ),
            (
                vec![(Role::ArBatcher, Busy), (Role::Denoiser, Draining)],
                Some("no denoiser is ready"),
            ),
            (
                vec![
                    (Role::ArBatcher, Busy),
                    (Role::Denoiser, Draining),
                    (Role::Denoiser, Busy),
                ],
                None,
            ),
        ];
        for (workers, reason) in cases {
            let workers: Vec<_> = workers
                .iter()
                .map(|(role, state)| worker(*role, *state))
                .collect();
            let wanted = reason.map_or(Readiness::Ready, |reason| {
                Readiness::NotReady(reason.to_owned())
            });
            assert_eq!(judge(&workers), wanted);
        }
    }
}
