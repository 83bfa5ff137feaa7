//! The gateway: HTTP in, jobs out, pictures back. It checks a request before anything is queued, follows the job
//! on the bus and answers in OpenAI's shapes. It holds nothing that another gateway could not answer from: records
//! and results are on the bus, here is only who waits.
//!
//! It must not know tensors, tokens or how work is batched, and never links libtorch.
//!
//! | module      | does                                                   |
//! |-------------|--------------------------------------------------------|
//! | `routes`    | the HTTP surface                                       |
//! | `tenants`   | who asks, where clients are told apart                 |
//! | `request`   | a body → a checked request, pure                       |
//! | `submit`    | a checked request → a job, pure                        |
//! | `keyed`     | requests under an idempotency key: one job each        |
//! | `turns`     | one claim of a key at a time                           |
//! | `rooms`     | lets requests in, as `batching`'s admission has it     |
//! | `jobs`      | the open jobs                                          |
//! | `follow`    | follows each to its end                                |
//! | `ends`      | ends outputs: cancels, deadlines                       |
//! | `waiting`   | clients that wait, and those that leave                |
//! | `spent`     | where a picture's time went, pure                      |
//! | `measures`  | what a scrape asks the broker                          |
//! | `outcome`   | how an output ended, pure                              |
//! | `outcomes`  | as what that counts, pure                              |
//! | `pictures`  | bounds the pictures on their way out                   |
//! | `answer`    | records and results → the images response, pure        |
//! | `job_answer`| what is known of a job → the job object, pure          |
//! | `reply`     | `ErrorCode` → HTTP status and error body, the only map |
//! | `readiness` | looks at streams, queues and workers; shows itself     |

mod address;
mod answer;
mod body;
mod config;
mod counters;
mod ends;
#[cfg(test)]
mod fixtures;
mod follow;
mod gateway;
mod job_answer;
mod jobs;
mod keyed;
mod measures;
mod outcome;
mod outcomes;
mod pictures;
mod readiness;
mod reply;
mod request;
mod rooms;
mod routes;
mod spent;
mod submit;
mod tenant_counters;
mod tenants;
mod turns;
mod waiting;

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use messaging::{Access, Bus, BusConfig, Results};
use protocol::{Role, WorkerId};
use service::{
    Health, ShellArgs, Shutdown,
    metrics::{Metrics, Process},
};
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    time::{Instant, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

pub use config::Config;
pub use pictures::PICTURES_OUT_MAX;
pub use tenants::{Tenants, TenantsError};
use {
    address::Address,
    counters::Counters,
    gateway::Gateway,
    jobs::{Jobs, JobsParts},
    outcome::ResultTtl,
    pictures::PicturesOut,
    readiness::{Own, Watch},
    rooms::Rooms,
    turns::Turns,
};

/// Share of the grace period after which waiting requests are told that their jobs go on; the rest is for telling.
const ANSWERS_DUE: f64 = 0.75;

/// Serves as `name` until `shutdown`, then ends in order: no new connections, answers, open jobs' tasks, the bus.
pub async fn run(
    config: Config,
    name: WorkerId,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    start(config, name, metrics, shutdown).await?.finish().await;
    Ok(())
}

/// A gateway that serves.
#[derive(Debug)]
pub struct Running {
    /// Where the API is.
    pub address: SocketAddr,
    /// Where it answers probes.
    pub probes: SocketAddr,
    bus: Bus,
    shutdown: Shutdown,
    grace: Duration,
    answers_due: CancellationToken,
    /// Stops what works on the bus; after the answers.
    effects: CancellationToken,
    served: oneshot::Receiver<()>,
}

/// Binds, and returns once the API is served. The broker need not be there yet: `/readyz` tells.
pub async fn start(
    config: Config,
    name: WorkerId,
    metrics: Metrics,
    shutdown: Shutdown,
) -> anyhow::Result<Running> {
    let (listener, address) = bind(config.listen).await?;
    let bus = connect(&config, name.clone()).await?;
    let effects = CancellationToken::new();
    let results = Results::start(&bus, &shutdown.tracker, effects.clone()).await?;
    let (counters, rooms) = measured(&config, &metrics, &bus);
    let (health, probes) = serve_probes(&config.shell, metrics, &shutdown, &effects).await?;
    let result_ttl = ResultTtl::default();
    let (patient, patient_seen) = watch::channel(false);
    let watch = Watch {
        patient,
        bus: bus.clone(),
        health: health.clone(),
        results: results.clone(),
        rooms: rooms.clone(),
        result_ttl: result_ttl.clone(),
        job_timeout: config.job_timeout,
        own: Own {
            id: name,
            health_address: probes,
        },
        tracker: shutdown.tracker.clone(),
        stop: shutdown.token.clone(),
        gone: effects.clone(),
    };
    shutdown.tracker.spawn(watch.keep());
    let jobs = Jobs::new(JobsParts {
        bus: bus.clone(),
        results,
        rooms,
        counters: counters.clone(),
        result_ttl: result_ttl.clone(),
        job_timeout: config.job_timeout,
        tracker: shutdown.tracker.clone(),
        stop: effects.clone(),
    });
    let answers_due = CancellationToken::new();
    let gateway = Gateway {
        bus: bus.clone(),
        jobs,
        tenants: config.tenants.clone(),
        turns: Turns::default(),
        health,
        patient: patient_seen,
        address: Address {
            public: config.public_url.clone(),
            bound: address,
        },
        counters,
        result_ttl,
        job_timeout: config.job_timeout,
        stopping: shutdown.token.clone(),
        answers_due: answers_due.clone(),
        pictures_out: PicturesOut::new(),
    };
    let served = serve(&Arc::new(gateway), listener, &shutdown);
    announce(&config, address)?;
    tracing::info!(%address, %probes, prefix = %bus.prefix(), "serving");
    Ok(Running {
        address,
        probes,
        bus,
        shutdown,
        grace: config.shell.grace,
        answers_due,
        effects,
        served,
    })
}

/// Starts to connect to the broker, as `name`.
async fn connect(config: &Config, name: WorkerId) -> anyhow::Result<Bus> {
    let urls = config.bus.nats_urls.clone();
    let connecting = BusConfig {
        worker: name,
        access: Access::files(
            config.bus.nats_credentials.as_ref(),
            config.bus.nats_ca.as_ref(),
        ),
        ..BusConfig::new(urls, config.bus.prefix.clone(), Role::Gateway)
    };
    Ok(Bus::connect(&connecting).await?)
}

/// Tells whoever waits for the file where the API is.
fn announce(config: &Config, address: SocketAddr) -> anyhow::Result<()> {
    tracing::info!(?config, "starting");
    match &config.listen_file {
        Some(file) => write_whole(file, &address.to_string()),
        None => Ok(()),
    }
}

async fn bind(listen: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = TcpListener::bind(listen)
        .await
        .with_context(|| format!("cannot listen on {listen}"))?;
    let bound = listener
        .local_addr()
        .context("the listener has no address")?;
    Ok((listener, bound))
}

/// What is counted, and by whose rule requests are let in.
fn measured(config: &Config, metrics: &Metrics, bus: &Bus) -> (Counters, Rooms) {
    let counters = Counters::register(metrics, config.tenants.as_ref());
    let rooms = Rooms::new(config.queue_outputs_max, counters.clone());
    measures::keep(metrics, Process::register(metrics), bus, &rooms);
    (counters, rooms)
}

/// Serves the probes until `answered`: what they tell, and where. Whoever looks after a gateway that still answers what it
/// has let in would take it for dead without them, and end it.
async fn serve_probes(
    shell: &ShellArgs,
    metrics: Metrics,
    shutdown: &Shutdown,
    answered: &CancellationToken,
) -> anyhow::Result<(Health, SocketAddr)> {
    let health = Health::new();
    let serving = service::health::serve(shell, health.clone(), metrics, shutdown, answered);
    Ok((health, serving.await?))
}

/// Serves the API until shutdown and the last answer; the receiver hears of that.
fn serve(
    gateway: &Arc<Gateway>,
    listener: TcpListener,
    shutdown: &Shutdown,
) -> oneshot::Receiver<()> {
    let server = warp::serve(routes::all(gateway))
        .incoming(listener)
        .graceful(shutdown.token.clone().cancelled_owned());
    let (ended, served) = oneshot::channel();
    shutdown.tracker.spawn(async move {
        server.run().await;
        if ended.send(()).is_err() {
            tracing::debug!("the last answers came after the grace period");
        }
    });
    served
}

impl Running {
    /// Waits for the shutdown and for everything to end, about the grace period at most.
    pub async fn finish(mut self) {
        self.shutdown.token.cancelled().await;
        let start = Instant::now();
        let due = start + self.grace.mul_f64(ANSWERS_DUE);
        let hurry = self.shutdown.hurry.clone();
        let answered = hurry.run_until_cancelled(timeout_at(due, &mut self.served));
        let answered = matches!(answered.await, Some(Ok(_)));
        self.answers_due.cancel();
        let cut_off = !answered && {
            let told = Instant::now() + self.grace.mul_f64(1.0 - ANSWERS_DUE);
            timeout_at(told, &mut self.served).await.is_err()
        };
        if cut_off {
            tracing::warn!("requests are cut off: the grace period is over");
        }
        self.effects.cancel();
        let left = |start: Instant| self.grace.saturating_sub(start.elapsed()).max(LAST_WORDS);
        self.shutdown.finish(left(start)).await;
        // Every publish has had its answer by now: what a lost broker cannot be told any more is no loss.
        if timeout(left(start), self.bus.close()).await.is_err() {
            tracing::debug!("the message broker was not told of the end");
        }
    }
}

/// What the tasks get to end in, even after requests that used up the grace period.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Under its name the file is never seen half written.
fn write_whole(file: &Path, text: &str) -> anyhow::Result<()> {
    let mut unfinished = file.as_os_str().to_owned();
    unfinished.push(".new");
    let written =
        std::fs::write(&unfinished, text).and_then(|()| std::fs::rename(&unfinished, file));
    written.with_context(|| format!("cannot write {}", file.display()))
}
