//! `fresco nats`: sets up and checks what a deployment needs on its broker.

mod keys;

use std::time::Duration;

use messaging::{Access, Bus, BusConfig, ProvisionError};
use protocol::{Role, topology::Topology};
use service::{BusArgs, exit::Failure};
use tokio::time::timeout;

use crate::{args::NatsCommand, terminal};

/// A broker is there or is not; an operator does not want to wait for one.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// Carries out one of its commands.
pub(crate) async fn run(command: NatsCommand) -> Result<(), Failure> {
    match command {
        NatsCommand::Init {
            bus: args,
            topology,
        } => {
            let topology = Topology::with(&args.prefix, topology.options());
            let bus = connect(&args).await?;
            bus.provision(&topology)
                .await
                .map_err(|error| failure(&error))?;
            tell(&topology, "is there");
            bus.close().await;
        }
        NatsCommand::Check { bus: args } => {
            let topology = Topology::new(&args.prefix);
            let bus = connect(&args).await?;
            bus.verify(&topology)
                .await
                .map_err(|error| failure(&error))?;
            tell(&topology, "is as it should be");
            bus.close().await;
        }
        NatsCommand::Keys { out } => keys::make(&out)?,
    }
    Ok(())
}

/// Who the command line is to the broker.
pub(crate) fn access(args: &BusArgs) -> Access {
    Access {
        credentials: args.nats_credentials.clone(),
        ca: args.nats_ca.clone(),
    }
}

/// A connection to a broker that is there.
pub(crate) async fn connect(args: &BusArgs) -> Result<Bus, Failure> {
    let config = BusConfig::new(args.nats_urls.clone(), args.prefix.clone(), Role::Operator);
    let config = config.with_access(access(args));
    let bus = Bus::connect(&config)
        .await
        .map_err(|error| Failure::unusable(&error))?;
    let connected = timeout(CONNECT_MAX, bus.connected()).await;
    connected.map_err(|_| {
        Failure::Failed(format!(
            "--nats-url {}: no NATS server answers there",
            shown(&args.nats_urls)
        ))
    })?;
    Ok(bus)
}

fn failure(error: &ProvisionError) -> Failure {
    match error {
        ProvisionError::Missing { name } => {
            Failure::Failed(format!("{name} is missing: run `fresco nats init`"))
        }
        ProvisionError::Differs { .. } | ProvisionError::Bus(_) => Failure::failed(error),
    }
}

fn tell(topology: &Topology, how: &str) {
    for stream in topology.streams() {
        terminal::say(format_args!("stream {} {how}", stream.name));
    }
    for consumer in topology.consumers() {
        terminal::say(format_args!(
            "consumer {}/{} {how}",
            consumer.stream, consumer.name
        ));
    }
    for bucket in topology.buckets() {
        terminal::say(format_args!("bucket {} {how}", bucket.name));
    }
}

/// Broker URLs for people: without credentials.
pub(crate) fn shown(urls: &[String]) -> String {
    let urls = urls.iter().map(|url| service::without_credentials(url));
    urls.collect::<Vec<_>>().join(", ")
}
