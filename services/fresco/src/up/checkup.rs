//! Asks each service whether it lives, and tells the supervisor which one hangs. `pulse` decides.

use std::{net::SocketAddr, time::Duration};

use messaging::Bus;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    pulse::{Action, Answer, Pulse, Question},
    roster::{self, Member},
    supervisor::{ChildId, Event},
    ticks::Ticks,
};

/// How often a service or our broker is asked, and how long it may think: with three silences a hung one is ended after 6 s.
pub(crate) const PERIOD: Duration = Duration::from_secs(2);

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Checkup {
    /// Tells where workers answer.
    pub(crate) bus: Bus,
    /// This machine, as presence names it.
    pub(crate) host: String,
    /// Where the gateway answers, where this machine has one.
    pub(crate) gateway: Option<SocketAddr>,
    /// The processes.
    pub(crate) roster: watch::Receiver<Vec<Member>>,
    /// To the supervisor.
    pub(crate) events: mpsc::Sender<Event>,
}

impl Checkup {
    /// Looks after the service `id` until the supervisor is gone.
    pub(crate) async fn watch(self, id: ChildId) {
        let client = match client(PERIOD) {
            Ok(client) => client,
            Err(error) => return tracing::error!(%error, "services are not looked after"),
        };
        let (mut pulse, mut known) = (Pulse::default(), None);
        let mut ticks = Ticks::new(PERIOD, &self.events);
        while ticks.next().await {
            let Some((name, process)) = self.process(id) else {
                continue;
            };
            // Kept: the entry of a worker that hangs runs out.
            if known.is_none_or(|(of, _)| of != process) {
                known = self
                    .address(&name, process)
                    .await
                    .map(|address| (process, address));
            }
            let Some((_, address)) = known else { continue };
            let path = match pulse.question(process) {
                Question::Ready => "readyz",
                Question::Alive => "livez",
            };
            let answer = ask(&client, &format!("http://{address}/{path}")).await;
            if let Some(Action::End) = pulse.apply(process, answer, Instant::now()) {
                self.events.send(Event::Hung(id)).await.ok();
            }
        }
    }

    fn process(&self, id: ChildId) -> Option<(String, u32)> {
        let roster = self.roster.borrow();
        let member = roster.iter().find(|member| member.id == id)?;
        Some((member.name.clone(), member.process?))
    }

    async fn address(&self, name: &str, process: u32) -> Option<SocketAddr> {
        if name == super::fleet::GATEWAY {
            return self.gateway;
        }
        let workers = self.bus.workers().await.ok()?;
        let mut workers = workers.into_iter();
        let is_it = |worker: &protocol::WorkerPresence| roster::is(worker, &self.host, process);
        workers.find(is_it)?.health_address
    }
}

/// Who asks a child of ours, and waits so long for the answer. No proxy: it is on this machine. No kept connections: a thawed
/// process would answer old ones.
pub(crate) fn client(timeout: Duration) -> reqwest::Result<reqwest::Client> {
    reqwest::Client::builder()
        .no_proxy()
        .timeout(timeout)
        .pool_max_idle_per_host(0)
        .build()
}

/// What is answered at `url`.
pub(crate) async fn ask(client: &reqwest::Client, url: &str) -> Answer {
    Answer::of(&client.get(url).send().await)
}

impl Answer {
    /// What `response` says.
    pub(crate) fn of(response: &reqwest::Result<reqwest::Response>) -> Self {
        match response {
            Ok(answer) if answer.status().is_success() => Self::Yes,
            Ok(_) => Self::No,
            Err(_) => Self::Silence,
        }
    }
}

/// Says yes so many times, and no from then on.
#[cfg(test)]
pub(crate) async fn falls_ill(listener: tokio::net::TcpListener, yes: usize) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    for status in std::iter::repeat_n(200, yes).chain(std::iter::repeat(503)) {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let read = stream.read(&mut [0; 4096]).await;
        assert!(read.expect("who asks waits") > 0);
        let answer =
            format!("HTTP/1.1 {status} x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        let written = stream.write_all(answer.as_bytes()).await;
        written.expect("who asks waits");
    }
}
