//! What happens outside the processes: the broker gets its streams, the fleet becomes ready, the user hears of it.
//! The supervisor is told by events.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use messaging::{Bus, BusConfig};
use protocol::{Role, topology::Topology};
use service::exit::Failure;
use tokio::sync::{mpsc, watch};

use super::{
    cannot_write,
    ready::{self, Probe},
    supervisor::{Ending, Event},
};
use crate::{args::UpArgs, nats::shown, terminal};

/// A broker that someone else runs is there or is not.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// One look at the gateway.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

/// What watches from outside the supervisor and tells it.
pub(crate) struct Outside {
    /// The command line.
    pub(crate) args: UpArgs,
    /// The broker.
    pub(crate) nats_urls: Vec<String>,
    /// Of the gateway.
    pub(crate) listen: SocketAddr,
    /// The workers and their processes.
    pub(crate) processes: watch::Receiver<Vec<(String, Option<u32>)>>,
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

    /// Sets the streams up, after each connection anew: somebody may have emptied the broker's store.
    async fn bring_up(&self) -> Result<(), Failure> {
        let config = BusConfig::new(
            self.nats_urls.clone(),
            self.args.prefix.clone(),
            Role::Operator,
        );
        let bus = Bus::connect(&config)
            .await
            .map_err(|error| Failure::unusable(&error))?;
        if !self.args.nats_urls.is_empty()
            && tokio::time::timeout(CONNECT_MAX, bus.connected())
                .await
                .is_err()
        {
            let urls = shown(&self.args.nats_urls);
            return Err(Failure::Unusable(format!(
                "--nats-url {urls}: no NATS server answers there"
            )));
        }
        let topology = Topology::new(&self.args.prefix);
        let mut connection = bus.connection();
        let mut announced = false;
        loop {
            let epoch = connection.borrow_and_update().epoch;
            ready::provision(&bus, &topology)
                .await
                .map_err(|error| Failure::unusable(&error))?;
            self.events.send(Event::BrokerReady).await.ok();
            if !announced {
                self.announce(&bus).await?;
                announced = true;
            }
            // The sender lives as long as `bus`.
            if connection
                .wait_for(|now| now.up && now.epoch > epoch)
                .await
                .is_err()
            {
                return Ok(());
            }
        }
    }

    /// Waits for the fleet and tells the user how to use it.
    async fn announce(&self, bus: &Bus) -> Result<(), Failure> {
        // No proxy: it is our own child on this machine.
        let client = reqwest::Client::builder()
            .no_proxy()
            .timeout(PROBE_TIMEOUT)
            .build();
        let client = client.map_err(|error| Failure::failed(&error))?;
        let gateway = reachable(self.listen);
        let probe = Probe {
            gateway,
            bus: bus.clone(),
            workers: self.processes.clone(),
        };
        probe
            .wait(&client, |missing| {
                terminal::note(format_args!("waiting for {missing}"))
            })
            .await;
        self.events.send(Event::FleetReady).await.ok();
        let url = format!("http://{gateway}");
        if let Some(file) = &self.args.url_file {
            write_whole(file, &url).map_err(|error| cannot_write(file, &error))?;
        }
        terminal::say(format_args!(
            "Fresco is ready at {url} (message broker: {})",
            shown(&self.nats_urls)
        ));
        terminal::say(format_args!(
            "  try it:  curl {url}/v1/images/generations -H 'content-type: application/json' -d '{{\"prompt\": \"a red fox\", \"size\": \"128x128\"}}'"
        ));
        terminal::say(format_args!(
            "  stop it: Ctrl-C, or kill {}",
            std::process::id()
        ));
        Ok(())
    }
}

/// Where `listen` is reached from this machine.
fn reachable(listen: SocketAddr) -> SocketAddr {
    match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            SocketAddr::from((Ipv4Addr::LOCALHOST, listen.port()))
        }
        IpAddr::V6(ip) if ip.is_unspecified() => {
            SocketAddr::from((Ipv4Addr::LOCALHOST, listen.port()))
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
