//! Asks the SRT servers that we started whether they are up, and tells who has loaded and who hangs: they show up in no list
//! of workers, so that neither `loaded` nor `checkup` knows of them. `pulse` decides.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use reqwest::Client;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    checkup::{PERIOD, ask, client},
    pulse::{Action, Answer, Pulse},
    roster::{self, Member},
    site::Server,
    supervisor::{ChildId, Event},
    ticks::Ticks,
};

/// SRT's own health check waits up to 20 s for its model (`SGLANG_HEALTH_CHECK_TIMEOUT`), and says no then. A server that
/// says nothing three times in a row is ended after 75 s: it takes minutes to load another time.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(25);

/// For so long a server that was up may say that it is not: six times the 20 s in which its model has brought nothing forth when
/// it says so. Its own watchdog (`--watchdog-timeout`) waits 300 s, and watches one process of several. How long it may say so
/// before it was ever up is `loading_hang` of the supervisor's limits.
const UNWELL_MAX: Duration = Duration::from_secs(120);

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
    /// [`UNWELL_MAX`].
    unwell_max: Duration,
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
            unwell_max: UNWELL_MAX,
        };
        (watched, known)
    }

    /// Looks after all of them until the supervisor is gone.
    pub(crate) async fn watch(self) {
        match client(HEALTH_TIMEOUT) {
            Ok(client) => {
                let each = self.servers.iter();
                join_all(each.map(|server| self.look_after(server, &client))).await;
            }
            Err(error) => tracing::error!(%error, "servers are not looked after"),
        }
    }

    async fn look_after(&self, server: &Server, client: &Client) {
        let health = format!("{}/health", server.url);
        let mut pulse = Pulse::unwell_at_most(self.unwell_max);
        let mut ticks = Ticks::new(PERIOD, &self.events);
        while ticks.next().await {
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
            if let Some(Action::End) = pulse.apply(process, answer, Instant::now()) {
                self.events.send(Event::Hung(id)).await.ok();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::{net::TcpListener, time::timeout};

    use super::*;
    use crate::up::{checkup::falls_ill, site::Pinned, supervisor::Layer};

    #[tokio::test]
    async fn a_server_that_was_up_and_says_no_for_too_long_hangs() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let server = Server {
            pinned: Pinned::nowhere("srt-0".to_owned()),
            url: format!("http://{address}"),
            program: "/srt".into(),
            arguments: Vec::new(),
        };
        let id = ChildId(3);
        let member = Member {
            id,
            name: "srt-0".to_owned(),
            layer: Layer::Server,
            process: Some(7),
        };
        let (_roster, members) = watch::channel(vec![member]);
        let (events, mut told) = mpsc::channel(8);
        let (mut servers, _up) = Servers::new(vec![server], &members, &events);
        servers.unwell_max = Duration::from_millis(1);
        let heard = async {
            let wait = timeout(Duration::from_secs(60), async {
                [told.recv().await, told.recv().await]
            });
            let wanted = [Event::Loaded(id), Event::Hung(id)].map(Some);
            assert_eq!(wait.await.expect("it is told of"), wanted);
        };
        tokio::select! {
            () = heard => {}
            () = servers.watch() => panic!("nobody looks after it"),
            () = falls_ill(listener, 1) => panic!("it ended"),
        }
    }
}
