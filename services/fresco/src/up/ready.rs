//! When the broker holds the streams, and when the children do their work.

use std::{net::SocketAddr, time::Duration};

use messaging::{Bus, ProvisionError};
use protocol::topology::Topology;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    roster::{self, Member},
    servers::Up,
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
    /// Those of servers that are up.
    pub(crate) servers: watch::Receiver<Up>,
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
        let later = {
            let up = self.servers.borrow();
            let works = |member: &Member| {
                member.process.is_some_and(|process| {
                    up.get(&member.id) == Some(&process)
                        || roster::works(&alive, &self.host, process)
                })
            };
            started(&self.roster.borrow(), rule, works)?
        };
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

/// Which of `members` do not work yet where enough of them do, by `rule`; where not, whom that waits for.
fn started(
    members: &[Member],
    rule: StartRule,
    works: impl Fn(&Member) -> bool,
) -> Result<Vec<String>, String> {
    let (working, missing): (Vec<_>, Vec<_>) = members
        .iter()
        .filter(|member| member.layer.loads())
        .partition(|member| works(member));
    let has_one = |layer| {
        // Who is on other machines is theirs to wait for.
        members.iter().all(|member| member.layer != layer)
            || working.iter().any(|member| member.layer == layer)
    };
    let enough = match rule {
        StartRule::All => missing.is_empty(),
        StartRule::OneOfEach => [Layer::Server, Layer::Sole, Layer::Service]
            .into_iter()
            .all(has_one),
    };
    let names: Vec<_> = missing.iter().map(|member| member.name.clone()).collect();
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
    use super::*;
    use crate::up::supervisor::ChildId;

    fn member(number: usize, layer: Layer) -> Member {
        Member {
            id: ChildId(number),
            name: format!("m{number}"),
            layer,
            process: u32::try_from(number).ok(),
        }
    }

    #[test]
    fn a_fleet_has_started_when_all_work_or_one_of_each_does() {
        use Layer::{Front, Server, Service, Sole};
        let all = "all of it";
        let plain: &[Layer] = &[Front, Sole, Service, Service];
        // The AR stage is elsewhere.
        let painter: &[Layer] = &[Front, Service, Service];
        let served: &[Layer] = &[Front, Sole, Service, Server, Server];
        // Who works, and for whom a fleet waits that wants all, or one of each.
        let table: [(&[Layer], &[usize], &str, &str); 11] = [
            (plain, &[], "m1, m2, m3", "m1, m2, m3"),
            (plain, &[2, 3], "m1", "m1"),
            (plain, &[1], "m2, m3", "m2, m3"),
            (plain, &[1, 3], "m2", all),
            (plain, &[1, 2, 3], all, all),
            (painter, &[], "m1, m2", "m1, m2"),
            (painter, &[2], "m1", all),
            (served, &[1, 2], "m3, m4", "m3, m4"),
            (served, &[3, 4], "m1, m2", "m1, m2"),
            (served, &[1, 2, 4], "m3", all),
            (served, &[1, 2, 3, 4], all, all),
        ];
        for (layers, working, of_all, of_each) in table {
            let members: Vec<_> = (0..)
                .zip(layers)
                .map(|(number, layer)| member(number, *layer))
                .collect();
            for (rule, waits_for) in [(StartRule::All, of_all), (StartRule::OneOfEach, of_each)] {
                let found = started(&members, rule, |member| working.contains(&member.id.0));
                let waited = found.as_ref().map_or_else(String::as_str, |_| all);
                assert_eq!(waited, waits_for, "{layers:?} {working:?} {rule:?}");
                if let Ok(later) = found {
                    let late = layers.len() - 1 - working.len();
                    assert_eq!(later.len(), late, "{layers:?} {working:?} {rule:?}");
                }
            }
        }
    }
}
