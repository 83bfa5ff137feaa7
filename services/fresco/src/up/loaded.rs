//! Tells the supervisor who has loaded: a worker says so itself, by showing up as one that takes work.

use std::{collections::BTreeMap, time::Duration};

use messaging::Bus;
use protocol::WorkerPresence;
use tokio::sync::{mpsc, watch};

use super::{
    roster::{self, Member},
    supervisor::{ChildId, Event},
    ticks::Ticks,
};

/// How often the list of workers is read: beside the minutes that a model loads for it is nothing.
const PERIOD: Duration = Duration::from_millis(500);

/// Goes on until the supervisor is gone.
pub(crate) async fn watch(
    bus: Bus,
    host: String,
    roster: watch::Receiver<Vec<Member>>,
    events: mpsc::Sender<Event>,
) {
    let mut told = BTreeMap::new();
    let mut ticks = Ticks::new(PERIOD, &events);
    while ticks.next().await {
        let Ok(workers) = bus.workers().await else {
            events.send(Event::Unseen).await.ok();
            continue;
        };
        let members = roster.borrow().clone();
        for id in news(&members, &workers, &host, &mut told) {
            events.send(Event::Loaded(id)).await.ok();
        }
    }
}

/// Who has loaded in this life of its and has not been told of. `told` has the process of whom was told last.
fn news(
    members: &[Member],
    workers: &[WorkerPresence],
    host: &str,
    told: &mut BTreeMap<ChildId, u32>,
) -> Vec<ChildId> {
    let mut news = Vec::new();
    for member in members {
        let Some(process) = member.process else {
            continue;
        };
        if told.get(&member.id) != Some(&process) && roster::has_loaded(workers, host, process) {
            told.insert(member.id, process);
            news.push(member.id);
        }
    }
    news
}

#[cfg(test)]
mod tests {
    use protocol::WorkerState;

    use super::*;
    use crate::up::supervisor::Layer;

    #[test]
    fn a_worker_is_told_of_once_in_each_of_its_lives() {
        let member = |process| {
            [Member {
                id: ChildId(3),
                name: "denoiser-2".to_owned(),
                layer: Layer::Service,
                process,
            }]
        };
        let mut told = BTreeMap::new();
        let table = [
            (None, roster::listed(7, "here", WorkerState::Idle), 0),
            (Some(7), roster::listed(7, "here", WorkerState::Loading), 0),
            (
                Some(7),
                roster::listed(7, "elsewhere", WorkerState::Idle),
                0,
            ),
            (Some(7), roster::listed(7, "here", WorkerState::Busy), 1),
            (Some(7), roster::listed(7, "here", WorkerState::Idle), 0),
            (Some(8), roster::listed(7, "here", WorkerState::Idle), 0),
            (Some(8), roster::listed(8, "here", WorkerState::Idle), 1),
        ];
        for (process, worker, count) in table {
            let news = news(
                &member(process),
                std::slice::from_ref(&worker),
                "here",
                &mut told,
            );
            assert_eq!(news.len(), count, "{process:?} {worker:?}");
        }
    }
}
