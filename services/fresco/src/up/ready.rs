//! When the broker holds the streams, and when the children do their work.

use std::{net::SocketAddr, time::Duration};

use messaging::{Bus, ProvisionError};
use protocol::{WorkerPresence, topology::Topology};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    roster::{self, Member},
    supervisor::{Layer, StartRule},
};

/// How often readiness is asked for: a start takes seconds, nobody notices a fifth of one.
const POLL: Duration = Duration::from_millis(200);
/// A broker that has just started may refuse for a moment, and a cluster elects for up to 8 s; then a refusal is
/// meant.
const REFUSED_MAX: Duration = Duration::from_secs(15);

/// Sees to it that the streams are there; returns when they are, or cannot be.
pub(crate) async fn provision(bus: &Bus, topology: &Topology) -> Result<(), ProvisionError> {
    // By the clock: one that may not ask hears nothing for 2 s a try.
    let mut refused_since = None;
    loop {
        bus.connected().await;
        match set_up(bus, topology).await {
            Ok(()) => return Ok(()),
            Err(ProvisionError::Bus(error))
                if refused_since.get_or_insert_with(Instant::now).elapsed() < REFUSED_MAX =>
            {
                tracing::debug!(%error, "streams are not set up yet");
            }
            Err(error) => return Err(error),
        }
        sleep(POLL).await;
    }
}

/// Looks first: streams that are there may have another ack deadline, which only [`Bus::verify`] lets pass.
async fn set_up(bus: &Bus, topology: &Topology) -> Result<(), ProvisionError> {
    match bus.verify(topology).await {
        Err(ProvisionError::Missing { .. }) => bus.provision(topology).await,
        verified => verified,
    }
}

/// The children that have to be ready.
#[derive(Debug)]
pub(crate) struct Probe {
    /// Where the gateway answers, where this machine has one.
    pub(crate) gateway: Option<SocketAddr>,
    /// Lists the workers.
    pub(crate) bus: Bus,
    /// This machine, as presence names it.
    pub(crate) host: String,
    /// The services' processes.
    pub(crate) roster: watch::Receiver<Vec<Member>>,
}

impl Probe {
    /// Returns when the fleet has started by `rule` and the gateway says it is ready, with who does not work yet.
    /// `waiting` hears what is missing, each time that changes.
    pub(crate) async fn wait(
        &self,
        client: &reqwest::Client,
        rule: StartRule,
        mut waiting: impl FnMut(&str),
    ) -> Vec<String> {
        let mut told = String::new();
        loop {
            let missing = match self.look(client, rule).await {
                Ok(later) => return later,
                Err(missing) => missing,
            };
            if missing != told {
                waiting(&missing);
                told = missing;
            }
            sleep(POLL).await;
        }
    }

    /// Who does not work yet in a fleet that has started, or what is not ready, for people.
    async fn look(&self, client: &reqwest::Client, rule: StartRule) -> Result<Vec<String>, String> {
        let alive = self.bus.workers().await;
        let alive = alive.map_err(|_| "the message broker".to_owned())?;
        let later = started(&self.roster.borrow(), &alive, &self.host, rule)?;
        let Some(gateway) = self.gateway else {
            return Ok(later);
        };
        let asked = client.get(format!("http://{gateway}/readyz")).send();
        match asked.await {
            Ok(answer) if answer.status().is_success() => Ok(later),
            Ok(answer) => Err(format!("gateway: {}", reason(answer).await)),
            Err(_) => Err("gateway".to_owned()),
        }
    }
}

/// Which of `members` on `host` do not work yet where enough of them do, by `rule`; where not, whom that waits for.
fn started(
    members: &[Member],
    alive: &[WorkerPresence],
    host: &str,
    rule: StartRule,
) -> Result<Vec<String>, String> {
    let works = |member: &&Member| {
        let is_it = |worker: &&WorkerPresence| {
            member
                .process
                .is_some_and(|process| roster::is(worker, host, process))
        };
        alive
            .iter()
            .find(is_it)
            .is_some_and(|worker| worker.state.takes_work())
    };
    let workers = || members.iter().filter(|member| member.is_worker());
    let missing: Vec<_> = workers().filter(|worker| !works(worker)).collect();
    let has_one = |layer| {
        let mut alike = workers().filter(|worker| worker.layer == layer).peekable();
        // Who is on other machines is theirs to wait for.
        alike.peek().is_none() || alike.any(|worker| works(&worker))
    };
    let enough = match rule {
        StartRule::All => missing.is_empty(),
        StartRule::OneOfEach => has_one(Layer::Sole) && has_one(Layer::Service),
    };
    let names: Vec<_> = missing.iter().map(|worker| worker.name.clone()).collect();
    if enough {
        Ok(names)
    } else {
        Err(names.join(", "))
    }
}

/// The gateway's words of why it is not ready.
async fn reason(answer: reqwest::Response) -> String {
    let status = answer.status();
    let body: Option<serde_json::Value> = answer.json().await.ok();
    let message = body
        .as_ref()
        .and_then(|body| body["error"]["message"].as_str());
    message.map_or_else(|| status.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use protocol::{Role, WorkerId, WorkerState};

    use super::*;
    use crate::up::supervisor::ChildId;

    fn worker(process: u32, host: &str, state: WorkerState) -> WorkerPresence {
        WorkerPresence {
            worker: WorkerId::generate(Role::Denoiser),
            role: Role::Denoiser,
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

    #[test]
    fn a_fleet_has_started_when_all_work_or_one_of_each_does() {
        let member = |number: usize, layer| Member {
            id: ChildId(number),
            name: format!("m{number}"),
            layer,
            process: u32::try_from(number).ok(),
        };
        let members = [
            member(0, Layer::Front),
            member(1, Layer::Sole),
            member(2, Layer::Service),
            member(3, Layer::Service),
        ];
        let all = "all of it";
        let painter = started(
            &members[2..],
            &[worker(3, "here", WorkerState::Idle)],
            "here",
            StartRule::OneOfEach,
        );
        assert_eq!(
            painter,
            Ok(vec!["m2".to_owned()]),
            "the AR stage is elsewhere"
        );
        // Who works, and for whom a fleet waits that wants all, or one of each.
        let table: [(&[u32], &str, &str); 5] = [
            (&[], "m1, m2, m3", "m1, m2, m3"),
            (&[2, 3], "m1", "m1"),
            (&[1], "m2, m3", "m2, m3"),
            (&[1, 3], "m2", all),
            (&[1, 2, 3], all, all),
        ];
        for (working, of_all, of_each) in table {
            // The same numbers on another machine, where they are further.
            let elsewhere = [1, 2, 3].map(|process| worker(process, "there", WorkerState::Idle));
            let here = [1, 2, 3].map(|process| match working.contains(&process) {
                true => worker(process, "here", WorkerState::Busy),
                false => worker(process, "here", WorkerState::Loading),
            });
            let alive = [elsewhere, here].concat();
            for (rule, waits_for) in [(StartRule::All, of_all), (StartRule::OneOfEach, of_each)] {
                let found = started(&members, &alive, "here", rule);
                let waited = found.as_ref().map_or_else(String::as_str, |_| all);
                assert_eq!(waited, waits_for, "{working:?} {rule:?}");
                if let Ok(later) = found {
                    assert_eq!(later.len(), 3 - working.len(), "{working:?} {rule:?}");
                }
            }
        }
    }
}
