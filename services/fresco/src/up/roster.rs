//! The processes of broker, servers and services as they come and go: written from the supervisor's reports, read by whoever looks after
//! them from outside.

use protocol::{WorkerPresence, WorkerState};

use super::{
    run::{ChildSpec, Report},
    supervisor::{ChildId, Layer},
};

/// A broker, server or service and, while it runs, its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// For the supervisor.
    pub(crate) id: ChildId,
    /// For people.
    pub(crate) name: String,
    /// What it is to the others.
    pub(crate) layer: Layer,
    /// Changes with each life.
    pub(crate) process: Option<u32>,
}

/// Whether `worker` is `process` on `host`: other machines have processes of the same number.
pub(crate) fn is(worker: &WorkerPresence, host: &str, process: u32) -> bool {
    worker.process == process && worker.host == host
}

/// As what `process` on `host` is among `workers`, if it is there.
fn state(workers: &[WorkerPresence], host: &str, process: u32) -> Option<WorkerState> {
    let it = workers.iter().find(|worker| is(worker, host, process));
    it.map(|worker| worker.state)
}

/// Whether `process` on `host` is among `workers` as one that takes work.
pub(crate) fn works(workers: &[WorkerPresence], host: &str, process: u32) -> bool {
    state(workers, host, process).is_some_and(WorkerState::takes_work)
}

/// Whether `process` on `host` is among `workers` as one that does not load any more. It may be in quarantine.
pub(crate) fn has_loaded(workers: &[WorkerPresence], host: &str, process: u32) -> bool {
    state(workers, host, process).is_some_and(|state| state != WorkerState::Loading)
}

/// Who is called `name`, and its process, while it runs.
pub(crate) fn running(members: &[Member], name: &str) -> Option<(ChildId, u32)> {
    let member = members.iter().find(|member| member.name == name)?;
    Some((member.id, member.process?))
}

/// All of `children`.
pub(crate) fn of(children: &[ChildSpec]) -> Vec<Member> {
    let member = |(index, child): (usize, &ChildSpec)| Member {
        id: ChildId(index),
        name: child.name.clone(),
        layer: child.layer,
        process: None,
    };
    children.iter().enumerate().map(member).collect()
}

/// Takes note of `report`; says which process has ended that may have held something.
pub(crate) fn note(members: &mut [Member], id: ChildId, report: &Report) -> Option<u32> {
    let member = members.iter_mut().find(|member| member.id == id)?;
    match report {
        Report::Started(process) => {
            member.process = Some(*process);
            None
        }
        Report::Died(..) | Report::Ended(..) | Report::GaveUp(..) => {
            let ended = member.process.take();
            ended.filter(|_| member.layer != Layer::Broker)
        }
        Report::Hangs | Report::HangsLoading | Report::Left => None,
    }
}

/// A worker as the broker lists it.
#[cfg(test)]
pub(crate) fn listed(process: u32, host: &str, state: protocol::WorkerState) -> WorkerPresence {
    WorkerPresence {
        worker: protocol::WorkerId::generate(protocol::Role::Denoiser),
        role: protocol::Role::Denoiser,
        state,
        reason: None,
        host: host.to_owned(),
        process,
        device: None,
        model_revision: None,
        health_address: None,
        held: Vec::new(),
        outputs_open: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::WorkerState;

    use super::*;
    use crate::up::{fleet::GATEWAY, supervisor::Exit};

    #[test]
    fn a_worker_is_known_by_its_process_and_its_host() {
        // The same number on another machine, which is further.
        let there = || listed(1, "there", WorkerState::Idle);
        let table = [
            (vec![], false),
            (vec![there()], false),
            (
                vec![there(), listed(1, "here", WorkerState::Loading)],
                false,
            ),
            (vec![there(), listed(2, "here", WorkerState::Idle)], false),
            (vec![there(), listed(1, "here", WorkerState::Busy)], true),
        ];
        for (listed, working) in table {
            assert_eq!(works(&listed, "here", 1), working, "{listed:?}");
        }
    }

    #[test]
    fn an_end_tells_the_process_that_ended() {
        let child = |name: &str, layer| ChildSpec {
            name: name.to_owned(),
            layer,
            program: "/p".into(),
            arguments: Vec::new(),
            environment: Vec::new(),
        };
        let mut members = of(&[
            child("nats-server", Layer::Broker),
            child(GATEWAY, Layer::Front),
            child("denoiser-0", Layer::Service),
        ]);
        let ids: Vec<_> = members.iter().map(|member| member.id.0).collect();
        assert_eq!(ids, [0, 1, 2]);
        let died = || Report::Died(Exit::Signal(9), Duration::ZERO, None);
        let table = [
            (2, Report::Started(70), None),
            (2, died(), Some(70)),
            (2, died(), None),
            (2, Report::Started(71), None),
            (2, Report::Hangs, None),
            (2, Report::HangsLoading, None),
            // A broker holds nothing that another could give back.
            (0, Report::Started(5), None),
            (0, died(), None),
            (2, Report::GaveUp(Exit::Code(2), None), Some(71)),
            (2, Report::Started(72), None),
            (2, Report::Ended(Exit::Signal(9), None), Some(72)),
        ];
        for (id, report, ended) in table {
            assert_eq!(
                note(&mut members, ChildId(id), &report),
                ended,
                "{report:?}"
            );
        }
    }
}
