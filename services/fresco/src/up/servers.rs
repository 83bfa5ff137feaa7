//! Asks the SRT servers that we started whether they are up, and tells who has loaded and who hangs: they show up in no list
//! of workers, so that neither `loaded` nor `checkup` knows of them. `pulse` decides.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use reqwest::Client;
use tokio::{
    sync::{mpsc, watch},
    time::{MissedTickBehavior, interval},
};

use super::{
    checkup::{PERIOD, ask},
    pulse::{Action, Answer, Pulse},
    roster::{self, Member},
    site::Server,
    supervisor::{ChildId, Event},
};

/// SRT's own health check waits up to 20 s for its model (`SGLANG_HEALTH_CHECK_TIMEOUT`), and says no then. A server that
/// says nothing three times in a row is ended after 75 s: it takes minutes to load another time.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(25);

/// The servers that are up, each with the process that has said so.
pub(crate) type Up = BTreeMap<ChildId, u32>;

/// Who asks.
#[derive(Debug)]
pub(crate) struct Servers {
    /// Where they are, by the names that they have in the roster.
    servers: Vec<Server>,
    roster: watch::Receiver<Vec<Member>>,
    /// To the supervisor.
    events: mpsc::Sender<Event>,
    up: watch::Sender<Up>,
}

impl Servers {
    /// With what will be known of them.
    pub(crate) fn new(
        servers: Vec<Server>,
        roster: &watch::Receiver<Vec<Member>>,
        events: &mpsc::Sender<Event>,
    ) -> (Self, watch::Receiver<Up>) {
        let (up, known) = watch::channel(Up::new());
        let (roster, events) = (roster.clone(), events.clone());
        let watched = Self {
            servers,
            roster,
            events,
            up,
        };
        (watched, known)
    }

    /// Looks after all of them until the supervisor is gone.
    pub(crate) async fn watch(self) {
        // As `checkup` asks: no proxy, no kept connections.
        let client = Client::builder()
            .no_proxy()
            .timeout(HEALTH_TIMEOUT)
            .pool_max_idle_per_host(0);
        match client.build() {
            Ok(client) => {
                let each = self.servers.iter();
                join_all(each.map(|server| self.look_after(server, &client))).await;
            }
            Err(error) => tracing::error!(%error, "servers are not looked after"),
        }
    }

    async fn look_after(&self, server: &Server, client: &Client) {
        let health = format!("{}/health", server.url);
        let mut pulse = Pulse::default();
        let mut period = interval(PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = period.tick() => {}
                () = self.events.closed() => return,
            }
            let running = || roster::running(&self.roster.borrow(), &server.pinned.name);
            let Some((id, process)) = running() else {
                continue;
            };
            let answer = ask(client, &health).await;
            // The answer of the one before tells nothing of its successor.
            if running() != Some((id, process)) {
                continue;
            }
            if answer == Answer::Yes && self.up.borrow().get(&id) != Some(&process) {
                self.up.send_modify(|up| {
                    up.insert(id, process);
                });
                self.events.send(Event::Loaded(id)).await.ok();
            }
            if let Some(Action::End) = pulse.apply(process, answer) {
                self.events.send(Event::Hung(id)).await.ok();
            }
        }
    }
}
