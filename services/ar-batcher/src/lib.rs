//! The AR-batcher: forms batches of rows and runs them on the AR engine, then fans out one denoise message per
//! output, so that n outputs are painted by n denoisers.
//!
//! It keeps nothing that the broker does not have: killed at any moment, its messages go to another batcher.

mod admit;
mod batch;
mod bench;
mod counters;
mod driver;
pub mod engine;
pub mod native;
mod prior_cache;
pub mod replay;
mod request;
mod settle;
pub mod srt;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use batching::{Limits, Policy};
use clap::{CommandFactory, error::ErrorKind};
use futures::future::try_join_all;
use messaging::{Access, HELD_MAX, Joining, Membership, ProvisionError};
use model::{Checkpoint, PriorModel};
use protocol::{
    Role, WorkerId,
    limits::{AR_DELAY_MS_MAX, AR_SLOTS_MAX},
};
use service::{
    Admission, BusArgs, Health, ModelArgs, ReplayArgs, RetryArgs, ShellArgs, Shutdown,
    exit::Failure,
    health,
    metrics::{Metrics, Process},
    profile::Probes,
};
use tokio_util::sync::CancellationToken;

use crate::{
    bench::Bench,
    counters::Counters,
    driver::{ByClass, Driver, Parts},
    engine::PriorEngine,
    native::NativeEngine,
    prior_cache::{CacheCounters, PriorCache},
    replay::ReplayEngine,
    srt::{SrtArgs, SrtEngine},
};

const _: () = assert!(AR_SLOTS_MAX as usize * 2 <= HELD_MAX);

/// Who writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// The model, on libtorch
    Native,
    /// An SRT server over HTTP: SGLang's runtime, which has the weights
    Srt,
    /// No model: times, tokens and failures by table
    Replay,
}

/// Writes the prior tokens of requests, several at a time.
#[derive(Debug, Clone, clap::Parser)]
#[command(name = "fresco-ar-batcher", version)]
pub struct Args {
    /// The broker.
    #[command(flatten)]
    pub bus: BusArgs,
    /// Who writes
    #[arg(long, value_enum, default_value_t = Engine::Native)]
    pub engine: Engine,
    /// The model.
    #[command(flatten)]
    pub model: ModelArgs,
    /// What there is instead of a model.
    #[command(flatten)]
    pub replay: ReplayArgs,
    /// Who has it instead of us.
    #[command(flatten)]
    pub srt: SrtArgs,
    /// How rows are put together; `continuous` is for engines that let rows join while others run [default: batched for
    /// the native engine, continuous for others]
    #[arg(long, value_enum)]
    pub admission: Option<Admission>,
    /// Most outputs in flight on one engine; a request for n outputs takes n slots
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=i64::from(AR_SLOTS_MAX)))]
    pub slots_max: u16,
    /// Milliseconds that an output waits for others of its size while an engine is idle, under batched admission
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(..=AR_DELAY_MS_MAX))]
    pub batch_delay_ms: u64,
    /// Outputs at the denoise stage beyond which no more rows start [default: 3 for each denoiser]
    #[arg(long, value_name = "OUTPUTS", value_parser = clap::value_parser!(u64).range(1..))]
    pub denoise_ahead_max: Option<u64>,
    /// Write the prior tokens of a request again that is equal to an earlier one, and store none for variations
    #[arg(long)]
    pub no_prior_cache: bool,
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
        if self.engine != Engine::Srt && !self.srt.srt_urls.is_empty() {
            let text = "--srt-url can only be used with --engine srt";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, text));
        }
        if self.engine == Engine::Srt && self.srt.srt_timeout >= self.retry.stall_max {
            let text = "--srt-timeout-s must be less than --stall-max-s";
            return Err(Self::command().error(ErrorKind::ValueValidation, text));
        }
        if self.engine == Engine::Native && self.admission == Some(Admission::Continuous) {
            let text = "the native engine runs one batch at a time: --admission has to be batched";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, text));
        }
        Ok(self)
    }

    fn policy(&self) -> Policy {
        let by_engine = match self.engine {
            Engine::Native => Admission::Batched,
            Engine::Srt | Engine::Replay => Admission::Continuous,
        };
        match self.admission.unwrap_or(by_engine) {
            Admission::Continuous => Policy::Continuous,
            Admission::Batched => Policy::Batched {
                delay: Duration::from_millis(self.batch_delay_ms),
            },
        }
    }

    fn limits(&self, engines: usize) -> Limits {
        let slots = vec![usize::from(self.slots_max); engines];
        let in_flight: usize = slots.iter().sum();
        Limits {
            policy: self.policy(),
            // What the queue lets one batcher hold, less what is in flight; but what several engines need may be more.
            waiting_max: in_flight.min(HELD_MAX.saturating_sub(in_flight)),
            slots,
        }
    }
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
pub async fn run(
    args: Args,
    name: WorkerId,
    metrics: Metrics,
    shutdown: &Shutdown,
) -> Result<(), Failure> {
    let health = Health::new();
    let (process, counters) = (Process::register(&metrics), Counters::register(&metrics));
    let cache_counters = CacheCounters::register(&metrics);
    let ended = CancellationToken::new();
    let serve = |metrics| health::serve(&args.shell, health.clone(), metrics, shutdown, &ended);
    let health_address = serve(metrics.clone()).await?;
    tracing::info!(%health_address, ?args, "starting");

    health.set_not_ready("loading the model");
    let Some(engines) = shutdown
        .token
        .run_until_cancelled(load(&args, &health, &counters, shutdown))
        .await
        .transpose()?
    else {
        return Ok(());
    };

    health.set_not_ready("waiting for the message broker");
    let limits = args.limits(engines.len());
    let joining = joining(name, &args, &engines, health_address);
    let writer = writer(&args, &joining.model_revision);
    let waiting = |error: &ProvisionError| {
        let reason = service::exit::chain(error);
        tracing::warn!(reason, "waiting for the streams");
        health.set_not_ready(reason);
    };
    let join = Box::pin(Membership::join(joining, &shutdown.tracker, waiting));
    let Some(joined) = shutdown.token.run_until_cancelled(join).await else {
        return Ok(());
    };
    let member = Arc::new(joined.map_err(|error| Failure::failed(&error))?);
    let queues = open_queues(&member, shutdown).await?;
    health.set_ready();
    health.end_with(shutdown);
    let broker = health.clone();
    member.on_connection(&shutdown.tracker, move |up| broker.set_connected(up));
    counters.has_slots(limits.slots.iter().sum());
    measure(&metrics, &member, process, counters.worker.clone());
    tracing::info!(worker = %member.id, "ready");

    let ends = member.ends(&shutdown.tracker).await;
    let parts = Parts {
        bench: Arc::new(Bench {
            ends: ends.map_err(|error| Failure::failed(&error))?,
            member: Arc::clone(&member),
            cache: writer.map(|writer| PriorCache::new(&member.bus, writer, cache_counters)),
            counters,
            attempts_max: args.retry.attempts_max,
            policy: limits.policy,
        }),
        engines,
        limits,
        ahead_max: args.denoise_ahead_max,
        retry: args.retry,
        health: health.clone(),
        tracker: shutdown.tracker.clone(),
        stop: shutdown.token.clone(),
    };
    let outcome = Driver::new(parts).run(queues).await;
    health.set_not_ready("stopping");
    member.leave();
    ended.cancel();
    shutdown.finish(args.shell.grace).await;
    member.bus.close().await;
    outcome.map_err(|error| Failure::failed(&error))
}

/// What a scrape finds out by looking.
fn measure(
    metrics: &Metrics,
    member: &Membership,
    process: Process,
    worker: service::metrics::Worker,
) {
    let (presence, connection) = (member.presence.watch(), member.bus.connection());
    let now = presence.borrow().clone();
    let known = [now.device, now.model_revision].map(Option::unwrap_or_default);
    let [device, revision] = &known;
    worker.name(&member.id.to_string(), &now.host, device, revision);
    metrics.before_scrapes(move || {
        let connection = *connection.borrow();
        worker.state(presence.borrow().state);
        process.connection(connection.up, connection.epoch);
        std::future::ready(())
    });
}

fn joining(
    name: WorkerId,
    args: &Args,
    engines: &[Arc<dyn PriorEngine>],
    health_address: SocketAddr,
) -> Joining {
    let revision = engines.first().map(|engine| engine.revision());
    Joining {
        name,
        urls: args.bus.nats_urls.clone(),
        access: Access::files(
            args.bus.nats_credentials.as_ref(),
            args.bus.nats_ca.as_ref(),
        ),
        prefix: args.bus.prefix.clone(),
        role: Role::ArBatcher,
        device: args.model.device_told(match args.engine {
            Engine::Native => &args.model.device,
            Engine::Srt => "srt",
            Engine::Replay => replay::REVISION,
        }),
        model_revision: revision.unwrap_or_default(),
        host: service::host::name(),
        health_address,
    }
}

/// Who writes, for the names of stored tokens: equal for engines that write alike. The revision of a checkpoint covers
/// its sampling parameters. `None` where nothing is to be stored.
fn writer(args: &Args, revision: &str) -> Option<String> {
    let writer = match args.engine {
        Engine::Native => format!("native {revision} {}", args.model.dtype),
        Engine::Srt => format!("srt {revision}"),
        Engine::Replay => format!("replay {revision}"),
    };
    (!args.no_prior_cache).then_some(writer)
}

async fn open_queues(member: &Membership, shutdown: &Shutdown) -> Result<ByClass, Failure> {
    let consumers = member.bus.topology().ar_consumers.iter();
    let queues = consumers.map(|spec| member.open(spec, &shutdown.tracker));
    let queues = try_join_all(queues).await;
    Ok(ByClass(queues.map_err(|error| Failure::failed(&error))?))
}

/// The engines, at least one.
async fn load(
    args: &Args,
    health: &Health,
    counters: &Counters,
    shutdown: &Shutdown,
) -> Result<Vec<Arc<dyn PriorEngine>>, Failure> {
    let engines: Vec<Arc<dyn PriorEngine>> = match args.engine {
        Engine::Native => {
            let probes = Probes {
                memory: counters.worker.memory.clone(),
                profiles: health.profiles(),
            };
            let engine = NativeEngine::load(args.model.clone(), probes, counters.device_busy());
            vec![Arc::new(engine.await?)]
        }
        Engine::Replay => vec![Arc::new(ReplayEngine::load(&args.replay).await?)],
        Engine::Srt => {
            let engines = SrtEngine::load(&args.srt, args.model.folder())?;
            srt::watch_servers(&engines, health, shutdown);
            engines
                .into_iter()
                .map(|engine| Arc::new(engine) as _)
                .collect()
        }
    };
    let revision = engines.first().map(|engine| engine.revision());
    tracing::info!(revision, engines = engines.len(), "loaded");
    Ok(engines)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn parsed(flags: &str) -> Result<Args, ErrorKind> {
        let flags = std::iter::once("worker").chain(flags.split_whitespace());
        let args = Args::try_parse_from(flags).and_then(Args::checked);
        args.map_err(|error| error.kind())
    }

    #[test]
    fn an_engine_has_its_own_admission_and_the_native_one_no_other() {
        let batched = Policy::Batched {
            delay: Duration::from_millis(5),
        };
        for (flags, policy) in [
            ("--model m --batch-delay-ms 5", batched),
            ("--model m --batch-delay-ms 5 --admission batched", batched),
            ("--engine replay --times t", Policy::Continuous),
            (
                "--engine replay --times t --admission batched --batch-delay-ms 5",
                batched,
            ),
        ] {
            let args = parsed(flags).expect("allowed");
            assert_eq!(args.policy(), policy, "{flags}");
        }
        let refused = parsed("--model m --admission continuous").map(|args| args.policy());
        assert_eq!(refused, Err(ErrorKind::ArgumentConflict));
    }

    #[test]
    fn what_waits_leaves_room_for_what_runs() {
        let args = parsed("--model m --slots-max 128").expect("allowed");
        for (engines, waiting_max) in [(1, 128), (2, 0), (3, 0)] {
            assert_eq!(args.limits(engines).waiting_max, waiting_max, "{engines}");
        }
        let args = parsed("--model m --slots-max 8").expect("allowed");
        assert_eq!(args.limits(2).waiting_max, 16);
    }

    #[test]
    fn srt_takes_its_servers_and_a_model_to_tokenize_with() {
        use ErrorKind::{ArgumentConflict, MissingRequiredArgument, ValueValidation};
        for (flags, wanted) in [
            ("--engine srt --srt-url http://h:1 --model m", Ok(1)),
            (
                "--engine srt --srt-url http://h:1/,http://h:2 --srt-url http://h:3 --model m",
                Ok(3),
            ),
            (
                "--engine srt --srt-url http://h:1 --model m --srt-timeout-s 9 --stall-max-s 10",
                Ok(1),
            ),
            ("--engine srt --model m", Err(MissingRequiredArgument)),
            (
                "--engine srt --srt-url http://h:1",
                Err(MissingRequiredArgument),
            ),
            (
                "--engine srt --srt-url https://h --model m",
                Err(ValueValidation),
            ),
            ("--srt-url http://h:1 --model m", Err(ArgumentConflict)),
            (
                "--engine replay --times t --srt-url http://h:1",
                Err(ArgumentConflict),
            ),
            ("--model m --srt-timeout-s 9", Err(MissingRequiredArgument)),
            (
                "--engine srt --srt-url http://h:1 --model m --srt-timeout-s 10 --stall-max-s 10",
                Err(ValueValidation),
            ),
        ] {
            let urls = parsed(flags).map(|args| args.srt.srt_urls.len());
            assert_eq!(urls, wanted, "{flags}");
        }
    }
}
