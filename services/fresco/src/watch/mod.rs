//! `fresco watch`: looks after a deployment from beside its broker. Keeps its streams there, and gives back what dead
//! workers held without waiting for their ack deadline. Any number may run: they find the same and do it once. Nobody reads along,
//! so what it has to say are log lines.

pub mod absence;
mod give_back;
pub mod keeper;
pub mod watcher;

use messaging::{Access, Bus, BusConfig};
use protocol::{Role, topology::Topology};
use service::{Shutdown, exit::Failure};

pub use self::give_back::give_back_for;
pub(crate) use self::give_back::give_back_for_process;
use self::keeper::News;
use crate::{
    args::WatchArgs,
    nats::{self, shown},
};

/// Runs until it is told to stop.
pub(crate) async fn run(args: WatchArgs) -> Result<(), Failure> {
    let shutdown = Shutdown::on_signals().map_err(|error| Failure::failed(&error))?;
    let topology = Topology::with(&args.bus.prefix, args.topology.options());
    let access = nats::access(&args.bus);
    let system_access = Access::files(args.system_credentials.as_ref(), args.bus.nats_ca.as_ref());
    let config = BusConfig::new(args.bus.nats_urls.clone(), args.bus.prefix, Role::Operator);
    let config = config.with_inbox(nats::WATCHER).with_access(access);
    let bus = Bus::connect(&config)
        .await
        .map_err(|error| Failure::unusable(&error))?;
    let broker = shown(&args.bus.nats_urls);
    tracing::info!("watching {broker}");
    let keep = keeper::keep(&bus, &topology, log);
    let watch = async {
        if args.system_urls.is_empty() {
            tracing::info!("no --system-url: jobs of dead workers wait for their ack deadline");
            return std::future::pending().await;
        }
        let warn = |line: &str| tracing::warn!("{line}");
        watcher::keep_watching(&bus, &args.system_urls, &system_access, warn).await;
    };
    // Neither ends by itself.
    tokio::select! {
        () = shutdown.token.cancelled() => {}
        () = keep => {}
        () = watch => {}
    }
    bus.close().await;
    Ok(())
}

/// Of a deployment that begins everything is missing.
fn log(news: &News) {
    match news {
        News::Created(_) => tracing::info!("{news}"),
        News::Differs(_) => tracing::warn!("{news}"),
    }
}
