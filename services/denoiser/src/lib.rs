//! The denoiser: one device, one output at a time.
//!
//! It pulls one denoise message, paints it on the device's own thread (glyph encoding, denoising, VAE decode, PNG),
//! stores the result through the fence and then acks. It keeps nothing: killed at any moment, its message goes to
//! another worker with the prior tokens in it, so a retry never costs the AR stage.

mod counters;
mod decide;
pub mod engine;
#[cfg(test)]
mod fixtures;
pub mod replay;
mod results;
mod stages;
mod tenant_times;
pub mod torch;
mod worker;

use std::net::SocketAddr;

use batching::Breaker;
use messaging::{Access, Joining, Membership, ProvisionError};
use model::{Checkpoint, Painter};
use protocol::{Role, WorkerId};
use service::{
    BusArgs, DeviceThread, Health, ModelArgs, ReplayArgs, RetryArgs, ShellArgs, Shutdown,
    exit::Failure,
    health,
    metrics::{Metrics, Process, number},
    profile::Probes,
};
use tokio_util::sync::CancellationToken;

use crate::{
    counters::Counters, engine::DenoiseEngine, replay::ReplayEngine, tenant_times::TenantTimes,
    torch::TorchEngine, worker::Worker,
};

/// Who paints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// The model, on libtorch
    Torch,
    /// No model: times, pictures and failures by table
    Replay,
}

/// Paints one output at a time from the denoise queue.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "fresco-denoiser", version)]
pub struct Args {
    /// The broker.
    #[command(flatten)]
    pub bus: BusArgs,
    /// Who paints
    #[arg(long, value_enum, default_value_t = Engine::Torch)]
    pub engine: Engine,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// What there is instead of a model.
    #[command(flatten)]
    pub replay: ReplayArgs,
    /// What a failure costs.
    #[command(flatten)]
    pub retry: RetryArgs,
    /// Everything else.
    #[command(flatten)]
    pub shell: ShellArgs,
}

impl Args {
    /// The flags that go together, or the error that says which do not.
    pub fn checked(self) -> Result<Self, clap::Error> {
        if self.engine != Engine::Replay {
            self.replay.refuse::<Self>()?;
            self.model.require::<Self>()?;
        }
        Ok(self)
    }
}

/// Verifies a checkpoint's parts that a denoiser uses and returns the report to print.
pub fn check(args: &ModelArgs) -> Result<String, Failure> {
    let report = Checkpoint::open(args.folder()).and_then(|checkpoint| Painter::check(&checkpoint));
    report
        .map(|report| report.to_string())
        .map_err(|error| Failure::unusable(&error))
}

/// Runs until shutdown. Loading comes first: a checkpoint that cannot be used ends the process before it says hello.
pub async fn run(
    args: Args,
    name: WorkerId,
    metrics: Metrics,
    shutdown: &Shutdown,
) -> Result<(), Failure> {
    let health = Health::new();
    let (process, counters) = (Process::register(&metrics), Counters::register(&metrics));
    let ended = CancellationToken::new();
    let serve = |metrics| health::serve(&args.shell, health.clone(), metrics, shutdown, &ended);
    let health_address = serve(metrics.clone()).await?;
    tracing::info!(%health_address, ?args, "starting");

    health.set_not_ready("loading the model");
    let probes = Probes {
        memory: counters.worker.memory.clone(),
        profiles: health.profiles(),
    };
    let Some(engine) = shutdown
        .token
        .run_until_cancelled(load(args.clone(), probes))
        .await
        .transpose()?
    else {
        return Ok(());
    };

    let revision = engine.call(|engine| engine.revision()).await;
    let revision = revision.map_err(|error| Failure::failed(&error))?;

    health.set_not_ready("waiting for the message broker");
    let joining = joining(&args, name, revision, health_address);
    let waiting = |error: &ProvisionError| {
        let reason = service::exit::chain(error);
        tracing::warn!(reason, "waiting for the streams");
        health.set_not_ready(reason);
    };
    let join = Box::pin(Membership::join(joining, &shutdown.tracker, waiting));
    let Some(joined) = shutdown.token.run_until_cancelled(join).await else {
        return Ok(());
    };
    let member = joined.map_err(|error| Failure::failed(&error))?;
    let consumer = &member.bus.topology().denoise_consumer;
    let queue = member.open(consumer, &shutdown.tracker).await;
    let queue = queue.map_err(|error| Failure::failed(&error))?;
    health.set_ready();
    health.end_with(shutdown);
    let broker = health.clone();
    member.on_connection(&shutdown.tracker, move |up| broker.set_connected(up));
    measure(&metrics, &member, process, counters.clone());
    tracing::info!(worker = %member.id, "ready");

    let mut worker = Worker {
        member: &member,
        engine,
        counters,
        tenants: TenantTimes::register(&metrics),
        health: health.clone(),
        stop: shutdown.token.clone(),
        tracker: shutdown.tracker.clone(),
        retry: args.retry,
        breaker: Breaker::new(args.retry.failures_max),
    };
    let outcome = worker.run(queue).await;
    health.set_not_ready("stopping");
    member.leave();
    ended.cancel();
    shutdown.finish(args.shell.grace).await;
    member.bus.close().await;
    outcome.map_err(|error| Failure::failed(&error))
}

/// What it says of itself when it shows up.
fn joining(
    args: &Args,
    name: WorkerId,
    model_revision: String,
    health_address: SocketAddr,
) -> Joining {
    Joining {
        name,
        urls: args.bus.nats_urls.clone(),
        access: Access::files(
            args.bus.nats_credentials.as_ref(),
            args.bus.nats_ca.as_ref(),
        ),
        prefix: args.bus.prefix.clone(),
        role: Role::Denoiser,
        device: args.model.device_told(match args.engine {
            Engine::Torch => &args.model.device,
            Engine::Replay => replay::REVISION,
        }),
        model_revision,
        host: service::host::name(),
        health_address,
    }
}

/// What a scrape finds out by looking.
fn measure(metrics: &Metrics, member: &Membership, process: Process, counters: Counters) {
    let (presence, connection) = (member.presence.watch(), member.bus.connection());
    let now = presence.borrow().clone();
    let known = [now.device, now.model_revision].map(Option::unwrap_or_default);
    let [device, revision] = &known;
    counters
        .worker
        .name(&member.id.to_string(), &now.host, device, revision);
    metrics.before_scrapes(move || {
        let (now, connection) = (presence.borrow(), *connection.borrow());
        counters.worker.state(now.state);
        counters.inflight.set(number(now.held.len() as u64));
        process.connection(connection.up, connection.epoch);
        std::future::ready(())
    });
}

/// Loads the engine on its device thread.
async fn load(args: Args, probes: Probes) -> Result<DeviceThread<Box<dyn DenoiseEngine>>, Failure> {
    let build = move || {
        let engine: Box<dyn DenoiseEngine> = match args.engine {
            Engine::Torch => {
                let engine = TorchEngine::load(&args.model, probes);
                Box::new(engine.map_err(|error| Failure::unusable(&error))?)
            }
            Engine::Replay => {
                let engine = ReplayEngine::load(&args.replay);
                Box::new(engine.map_err(|error| Failure::unusable(&error))?)
            }
        };
        tracing::info!(revision = engine.revision(), "loaded");
        Ok(engine)
    };
    DeviceThread::start("device", build)
        .await
        .map_err(|error| Failure::failed(&error))?
}
