//! When the broker holds the streams, and when every child does its work.

use std::{net::SocketAddr, time::Duration};

use messaging::{Bus, ProvisionError};
use protocol::topology::Topology;
use tokio::{sync::watch, time::sleep};

use super::roster::Member;

/// How often readiness is asked for: a start takes seconds, nobody notices a fifth of one.
const POLL: Duration = Duration::from_millis(200);
/// A broker that has just started may refuse for a moment, and a cluster elects for up to 8 s; then a refusal is
/// meant.
const REFUSALS_MAX: u32 = 75;

/// Sees to it that the streams are there; returns when they are, or cannot be.
pub(crate) async fn provision(bus: &Bus, topology: &Topology) -> Result<(), ProvisionError> {
    let mut refusals = 0;
    loop {
        bus.connected().await;
        match set_up(bus, topology).await {
            Ok(()) => return Ok(()),
            Err(ProvisionError::Bus(error)) if refusals < REFUSALS_MAX => {
                tracing::debug!(%error, "streams are not set up yet");
                refusals += 1;
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
    /// Where the gateway answers.
    pub(crate) gateway: SocketAddr,
    /// Lists the workers.
    pub(crate) bus: Bus,
    /// The services' processes.
    pub(crate) roster: watch::Receiver<Vec<Member>>,
}

impl Probe {
    /// Returns when every worker takes work and the gateway says it is ready. `waiting` hears what is missing, each
    /// time that changes.
    pub(crate) async fn wait(self, client: &reqwest::Client, mut waiting: impl FnMut(&str)) {
        let mut told = String::new();
        loop {
            let Some(missing) = self.missing(client).await else {
                return;
            };
            if missing != told {
                waiting(&missing);
                told = missing;
            }
            sleep(POLL).await;
        }
    }

    /// What is not ready yet, for people.
    async fn missing(&self, client: &reqwest::Client) -> Option<String> {
        let alive = match self.bus.workers().await {
            Ok(alive) => alive,
            Err(_) => return Some("the message broker".to_owned()),
        };
        let is_ready = |process: u32| {
            alive
                .iter()
                .any(|worker| worker.process == process && worker.state.takes_work())
        };
        let missing: Vec<String> = {
            let roster = self.roster.borrow();
            let workers = roster.iter().filter(|member| member.is_worker());
            let missing = workers.filter(|worker| !worker.process.is_some_and(is_ready));
            missing.map(|worker| worker.name.clone()).collect()
        };
        if !missing.is_empty() {
            return Some(missing.join(", "));
        }
        match client
            .get(format!("http://{}/readyz", self.gateway))
            .send()
            .await
        {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("gateway: {}", reason(answer).await)),
            Err(_) => Some("gateway".to_owned()),
        }
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
