//! What happens outside the processes: the broker gets its streams, the fleet becomes ready, the user hears of it.
//! The supervisor is told by events.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use messaging::Bus;
use protocol::topology::Topology;
use service::exit::Failure;
use tokio::sync::{mpsc, watch};

use super::{
    cannot_write, named,
    ready::{self, Probe},
    roster::Member,
    servers::Up,
    supervisor::{Ending, Event, StartRule},
};
use crate::{args::UpArgs, nats::shown, terminal, watch::keeper};

/// A broker that someone else runs is there or is not.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// One look at the gateway.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// What watches from outside the supervisor and tells it.
pub(crate) struct Outside {
    /// The command line.
    pub(crate) args: UpArgs,
    /// Servers that keep a copy of what is created, if somebody said.
    pub(crate) replicas: Option<u8>,
    /// The broker.
    pub(crate) bus: Bus,
    /// Where it is.
    pub(crate) nats_urls: Vec<String>,
    /// What it takes to have started.
    pub(crate) start: StartRule,
    /// Where the gateway listens, where this machine has one.
    pub(crate) gateway: Option<SocketAddr>,
    /// The services' processes.
    pub(crate) roster: watch::Receiver<Vec<Member>>,
    /// Those of servers that are up.
    pub(crate) servers: watch::Receiver<Up>,
    /// To the supervisor.
    pub(crate) events: mpsc::Sender<Event>,
    /// Why the supervisor was told to stop, when it was told from here.
    pub(crate) failed: mpsc::Sender<Failure>,
}

impl Outside {
    /// Goes on until the runtime ends.
    pub(crate) async fn watch(self) {
        if let Err(failure) = self.bring_up().await {
            // Read only after the supervisor has ended, which the event makes it do.
            self.failed.try_send(failure).ok();
            self.events.send(Event::Stop(Ending::Unusable)).await.ok();
        }
    }

    /// Sets the streams up and keeps them; returns only when something cannot be used.
    async fn bring_up(&self) -> Result<(), Failure> {
        if !self.args.nats_urls.is_empty()
            && tokio::time::timeout(CONNECT_MAX, self.bus.connected())
                .await
                .is_err()
        {
            let urls = shown(&self.args.nats_urls);
            let written = named::written(&self.args, "--nats-url", "broker.urls");
            return Err(Failure::Unusable(format!(
                "{written} {urls}: no NATS server answers there that we believe and that lets us in"
            )));
        }
        let topology = Topology::with(&self.args.prefix, self.args.times.options(self.replicas));
        ready::provision(&self.bus, &topology)
            .await
            .map_err(|error| Failure::unusable(&error))?;
        self.events.send(Event::BrokerReady).await.ok();
        let keep = keeper::keep(&self.bus, &topology, |news| terminal::note(news));
        let announce = async {
            match self.announce().await {
                Ok(()) => std::future::pending().await,
                Err(failure) => Err(failure),
            }
        };
        tokio::select! {
            () = keep => Ok(()),
            failed = announce => failed,
        }
    }

    /// Waits for the fleet and tells the user how to use it.
    async fn announce(&self) -> Result<(), Failure> {
        // No proxy: it is our own child on this machine.
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(PROBE_TIMEOUT)
            .build();
        let client = client.map_err(|error| Failure::failed(&error))?;
        let gateway = self.gateway.map(reachable);
        let probe = Probe {
            gateway,
            bus: self.bus.clone(),
            host: service::host::name(),
            roster: self.roster.clone(),
            servers: self.servers.clone(),
        };
        let waiting = |missing: &str| terminal::note(format_args!("waiting for {missing}"));
        let later = probe.wait(&client, self.start, waiting).await;
        self.events.send(Event::FleetReady).await.ok();
        match gateway {
            Some(gateway) => self.tell_where(&format!("http://{gateway}"))?,
            None => terminal::say(format_args!(
                "Fresco's workers here are ready (message broker: {})",
                shown(&self.nats_urls)
            )),
        }
        terminal::say(format_args!(
            "  stop it: Ctrl-C, or kill {}",
            std::process::id()
        ));
        if !later.is_empty() {
            probe.wait(&client, StartRule::All, waiting).await;
            terminal::note("all workers are ready");
        }
        Ok(())
    }

    /// Whoever waits for it, people and programs.
    fn tell_where(&self, url: &str) -> Result<(), Failure> {
        if let Some(file) = &self.args.url_file {
            write_whole(file, url).map_err(|error| cannot_write(file, &error))?;
        }
        terminal::say(format_args!(
            "Fresco is ready at {url} (message broker: {})",
            shown(&self.nats_urls)
        ));
        terminal::say(format_args!(
            "  try it:  {}",
            try_it(url, self.args.tenants.as_deref())
        ));
        Ok(())
    }
}

/// A request that the gateway at `url` answers with a picture; where it tells clients apart, by who has a key of theirs.
fn try_it(url: &str, tenants: Option<&Path>) -> String {
    let key = match tenants {
        // Only its hash is known here.
        Some(_) => "-H \"Authorization: Bearer $KEY\" ",
        None => "",
    };
    let told = tenants.map_or_else(String::new, |file| {
        format!("  # KEY: that of a client in {}", file.display())
    });
    format!(
        "curl {url}/v1/images/generations {key}-H 'content-type: application/json' -d '{{\"prompt\": \"a red fox\", \"size\": \"128x128\"}}'{told}"
    )
}

/// Where `listen` is reached from this machine.
fn reachable(listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            SocketAddr::from((Ipv4Addr::LOCALHOST, listen.port()))
        }
        // Not the other family's: a machine may keep them apart.
        IpAddr::V6(ip) if ip.is_unspecified() => {
            SocketAddr::from((Ipv6Addr::LOCALHOST, listen.port()))
        }
        IpAddr::V4(_) | IpAddr::V6(_) => listen,
    }
}

/// Whoever waits for the file finds all of it.
fn write_whole(file: &Path, text: &str) -> io::Result<()> {
    let fresh = file.with_extension("part");
    fs::write(&fresh, text)?;
    fs::rename(fresh, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_to_try_brings_a_key_where_one_is_asked_for() {
        let line = |tenants: Option<&str>| try_it("http://h:1", tenants.map(Path::new));
        assert_eq!(
            line(None),
            "curl http://h:1/v1/images/generations -H 'content-type: application/json' \
             -d '{\"prompt\": \"a red fox\", \"size\": \"128x128\"}'"
        );
        assert_eq!(
            line(Some("/etc/t.toml")),
            "curl http://h:1/v1/images/generations -H \"Authorization: Bearer $KEY\" \
             -H 'content-type: application/json' -d '{\"prompt\": \"a red fox\", \"size\": \"128x128\"}'  \
             # KEY: that of a client in /etc/t.toml"
        );
    }
}
