//! Gives back what a dead worker held, so that nobody has to wait for its ack deadline.
//!
//! Its presence entry names the messages, and taking the entry off the list is what makes one of all who find it dead
//! the one who gives them back.

use messaging::{Bus, BusError};
use protocol::{CurrentWork, WorkerId, WorkerPresence};

/// Gives back what `worker`, which is dead, held; says how many messages that were.
pub async fn give_back_for(bus: &Bus, worker: &WorkerId) -> Result<usize, BusError> {
    let Some(dead) = bus.bury_worker(worker).await? else {
        return Ok(0);
    };
    if dead.held.is_empty() {
        return Ok(0);
    }
    let alive = bus.workers().await?;
    let mut given = 0;
    for work in orphans(&dead, &alive) {
        if bus.give_back(&work.ack_subject).await {
            given += 1;
        }
    }
    tracing::info!(%worker, held = dead.held.len(), given, "worker is dead: its messages go to others");
    Ok(given)
}

/// The same for whoever ran as `process` on `host`.
pub(crate) async fn give_back_for_process(
    bus: &Bus,
    host: &str,
    process: u32,
) -> Result<usize, BusError> {
    let workers = bus.workers().await?;
    let dead = workers
        .iter()
        .filter(|worker| worker.host == host && worker.process == process);
    let mut given = 0;
    for worker in dead {
        given += give_back_for(bus, &worker.worker).await?;
    }
    Ok(given)
}

/// What `dead` held and nobody alive does: a message whose deadline had passed may be with another worker already,
/// and a nak would take it from that one.
fn orphans<'a>(
    dead: &'a WorkerPresence,
    alive: &[WorkerPresence],
) -> impl Iterator<Item = &'a CurrentWork> {
    // An AR-batcher and a denoiser name the same output for two messages.
    let holds = |other: &WorkerPresence, work: &CurrentWork| {
        other.role == dead.role && other.held.iter().any(|held| held.output == work.output)
    };
    dead.held.iter().filter(move |work| {
        let mut others = alive.iter().filter(|other| other.worker != dead.worker);
        !others.any(|other| holds(other, work))
    })
}

#[cfg(test)]
mod tests {
    use protocol::{JobId, OutputIndex, Role, WorkerState};

    use super::*;

    fn worker(name: &str, role: Role, jobs: &[u128]) -> WorkerPresence {
        let held = |job: &u128| CurrentWork {
            output: JobId::from_u128(*job).output(OutputIndex::FIRST),
            ack_subject: format!("{name}.{job}"),
            since: 0,
        };
        WorkerPresence {
            worker: name.parse().expect("allowed characters"),
            role,
            state: WorkerState::Busy,
            reason: None,
            host: "here".to_owned(),
            process: 1,
            device: None,
            model_revision: None,
            health_address: None,
            held: jobs.iter().map(held).collect(),
            outputs_open: 0,
        }
    }

    #[test]
    fn what_another_live_worker_holds_is_not_given_back() {
        let dead = worker("dead", Role::ArBatcher, &[1, 2, 3]);
        let alive = [
            worker("dead", Role::ArBatcher, &[1, 2, 3]),
            worker("other", Role::ArBatcher, &[2]),
            worker("denoiser", Role::Denoiser, &[3]),
        ];
        let given: Vec<_> = orphans(&dead, &alive)
            .map(|work| work.ack_subject.as_str())
            .collect();
        assert_eq!(given, ["dead.1", "dead.3"]);
    }
}
