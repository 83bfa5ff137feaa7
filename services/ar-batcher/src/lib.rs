//! The AR-batcher: forms batches of rows and runs them on the AR engine, then fans out one denoise message per
//! output, so that n outputs are painted by n denoisers.
//!
//! It keeps nothing that the broker does not have: killed at any moment, its messages go to another batcher.

mod admit;
mod counters;
mod driver;
pub mod engine;
pub mod native;
mod request;
mod settle;

use std::{sync::Arc, time::Duration};

use batching::{BatchFormer, BatchLimits};
use messaging::{Bus, BusConfig, Presence, WorkQueue};
use model::{Checkpoint, PriorModel};
use protocol::{Role, WorkerId, WorkerPresence, WorkerState, topology::Topology};
use service::{
    BusArgs, Health, ModelArgs, ShellArgs, Shutdown, exit::Failure, metrics::registry::Registry,
};
use tokio_util::sync::CancellationToken;

use crate::{
    counters::Counters,
    driver::{Driver, Parts},
    native::NativeEngine,
};

/// Writes the prior tokens of requests, several at a time.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "fresco-ar-batcher", version)]
pub struct Args {
    /// The broker.
    #[command(flatten)]
    pub bus: BusArgs,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Outputs that may run together; a request for n outputs takes n slots
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub batch_slots_max: u16,
    /// Milliseconds that an output waits for others of its size while the engine is idle
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=60_000))]
    pub batch_delay_ms: u64,
    /// Everything else.
    #[command(flatten)]
    pub shell: ShellArgs,
}

/// Verifies a checkpoint's parts that a batcher uses and returns the report to print.
pub fn check(args: &ModelArgs) -> Result<String, Failure> {
    let report =
        Checkpoint::open(args.folder()).and_then(|checkpoint| PriorModel::check(&checkpoint));
    report
        .map(|report| report.to_string())
        .map_err(|error| Failure::unusable(&error))
}

/// Runs until shutdown. Loading comes first: a checkpoint that cannot be used ends the process before it says hello.
pub async fn run(args: Args, shutdown: &Shutdown) -> Result<(), Failure> {
    let health = Health::new();
    let mut metrics = Registry::default();
    let counters = Counters::register(&mut metrics);
    let health_address =
        service::health::serve(args.shell.health_listen, health.clone(), metrics, shutdown);
    let health_address = health_address
        .await
        .map_err(|error| Failure::failed(&error))?;
    tracing::info!(%health_address, model = %args.model.folder().display(), device = %args.model.device, "starting");

    health.set_not_ready("loading the model");
    let load = NativeEngine::load(args.model.clone());
    let Some(engine) = shutdown.token.run_until_cancelled(load).await.transpose()? else {
        return Ok(());
    };

    health.set_not_ready("waiting for the message broker");
    let config = BusConfig {
        urls: args.bus.nats_urls,
        prefix: args.bus.prefix.clone(),
        role: Role::ArBatcher,
    };
    let topology = Topology::new(&args.bus.prefix);
    let connect = async {
        let bus = Bus::connect(&config)
            .await
            .map_err(|error| Failure::failed(&error))?;
        service::wait::until_ok("streams", &health, || bus.verify(&topology)).await;
        let queue = WorkQueue::open(&bus, &topology.ar_consumer, &shutdown.tracker).await;
        Ok::<_, Failure>((bus, queue.map_err(|error| Failure::failed(&error))?))
    };
    let Some((bus, queue)) = shutdown
        .token
        .run_until_cancelled(connect)
        .await
        .transpose()?
    else {
        return Ok(());
    };

    let id = WorkerId::generate(Role::ArBatcher);
    let first = WorkerPresence {
        worker: id.clone(),
        role: Role::ArBatcher,
        state: WorkerState::Idle,
        device: args.model.device,
        process: std::process::id(),
        health_address: Some(health_address),
        current: None,
    };
    // Its own token: the driver gives its messages back first, then presence goes.
    let leave = CancellationToken::new();
    let presence = Presence::start(&bus, first, &shutdown.tracker, leave.clone());
    health.set_ready();
    tracing::info!(worker = %id, "ready");

    let limits = BatchLimits {
        slots_max: usize::from(args.batch_slots_max),
        delay: Duration::from_millis(args.batch_delay_ms),
    };
    let parts = Parts {
        bus: bus.clone(),
        engine: Arc::new(engine),
        presence,
        counters,
        stop: shutdown.token.clone(),
    };
    let outcome = Driver::new(parts, BatchFormer::new(limits))
        .run(queue)
        .await;
    health.set_not_ready("stopping");
    leave.cancel();
    shutdown.finish(args.shell.grace).await;
    bus.close().await;
    outcome.map_err(|error| Failure::failed(&error))
}
