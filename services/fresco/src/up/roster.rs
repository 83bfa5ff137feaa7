//! The services' processes as they come and go: written from the supervisor's reports, read by whoever looks after
//! them from outside.

use protocol::WorkerPresence;

use super::{
    run::{ChildSpec, Report},
    supervisor::{ChildId, Layer},
};

/// A service and, while it runs, its process.
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

impl Member {
    /// Whether its presence tells of it; otherwise it is the gateway.
    pub(crate) fn is_worker(&self) -> bool {
        self.layer.loads()
    }
}

/// Whether `worker` is `process` on `host`: other machines have processes of the same number.
pub(crate) fn is(worker: &WorkerPresence, host: &str, process: u32) -> bool {
    worker.process == process && worker.host == host
}

/// The services among `children`.
pub(crate) fn of(children: &[ChildSpec]) -> Vec<Member> {
    let services = children.iter().enumerate();
    let services = services.filter(|(_, child)| child.layer != Layer::Broker);
    let member = |(index, child): (usize, &ChildSpec)| Member {
        id: ChildId(index),
        name: child.name.clone(),
        layer: child.layer,
        process: None,
    };
    services.map(member).collect()
}

/// Takes note of `report`; says which process has ended.
pub(crate) fn note(members: &mut [Member], id: ChildId, report: &Report) -> Option<u32> {
    let member = members.iter_mut().find(|member| member.id == id)?;
    match report {
        Report::Started(process) => {
            member.process = Some(*process);
            None
        }
        Report::Died(..) | Report::Ended(..) | Report::GaveUp(..) => member.process.take(),
        Report::Hangs | Report::HangsLoading | Report::Left => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::up::{fleet::GATEWAY, supervisor::Exit};

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
        let kinds: Vec<_> = members
            .iter()
            .map(|member| (member.id.0, member.is_worker()))
            .collect();
        assert_eq!(kinds, [(1, false), (2, true)]);
        let died = || Report::Died(Exit::Signal(9), Duration::ZERO, None);
        let table = [
            (2, Report::Started(70), None),
            (2, died(), Some(70)),
            (2, died(), None),
            (2, Report::Started(71), None),
            (2, Report::Hangs, None),
            (2, Report::HangsLoading, None),
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
