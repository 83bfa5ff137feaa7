//! One run: start, load and strike, wait until all is quiet, audit.

use std::{
    path::Path,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use messaging::{Bus, BusConfig};
use protocol::{
    Prefix, Role,
    topology::{Topology, TopologyOptions},
};
use replay::{ArTimes, DenoiseTimes, Table};
use tempfile::TempDir;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    audit,
    client::Clients,
    crew::{Crew, Tally},
    ledger::Entry,
    order::{self, Kinds, Mix},
    plan::{PlanConfig, Strike, plan},
    report::{Logged, Report},
    stored,
};
use crate::{
    cluster::{self, Cluster},
    free_port, http,
    recipe::{Deployment, Recipe},
};

/// The longest time a job may take. No job that nothing is wrong with comes near it: one that does ends as expired,
/// which its order does not allow.
pub(super) const JOB_TIMEOUT: Duration = Duration::from_secs(120);

/// After the last answer nothing is left to do but for acks and late workers: an ack deadline or two.
const QUIET_WITHIN: Duration = Duration::from_secs(60);

/// Between two looks at the processes.
const LOOK: Duration = Duration::from_millis(10);

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Servers {
    /// One server.
    One,
    /// Three, with three copies of everything; at the end of the plan each is ended and started again.
    Cluster,
}

/// What to do.
#[derive(Debug, Clone)]
pub struct Config {
    /// Decides the plan and the requests.
    pub seed: u64,
    /// Requests at least; they go on until the plan is carried out.
    pub requests: usize,
    /// Kills and freezes of processes.
    pub faults: usize,
    /// Kills of the broker.
    pub broker_kills: usize,
    /// Clients at once.
    pub clients: usize,
    /// How long the strikes are spread over.
    pub lasts: Duration,
    /// Which broker.
    pub servers: Servers,
    /// What becomes of the logs.
    pub logs: Logs,
}

/// What becomes of the processes' logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logs {
    /// Kept when something is wrong.
    OfViolations,
    /// Kept.
    Always,
}

const TABLE: Table = Table {
    ar: ArTimes::new(&[(1, 12.0), (2, 14.0)], 260),
    denoise: DenoiseTimes {
        step_ms: 5.0,
        decode_ms: 1.0,
    },
};

const ROLES: [(Role, usize); 4] = [
    (Role::Gateway, 2),
    (Role::ArBatcher, 2),
    (Role::Denoiser, 4),
    (Role::Operator, 1),
];

const PREFIX: &str = "chaos";

fn prefix() -> Prefix {
    PREFIX.parse().expect("allowed characters")
}

impl Config {
    fn nodes(&self) -> usize {
        match self.servers {
            Servers::One => 1,
            Servers::Cluster => 3,
        }
    }

    /// Short, so that a lost message costs a run seconds. In a cluster longer than an election takes at most.
    fn ack_wait(&self) -> Duration {
        match self.servers {
            Servers::One => Duration::from_secs(2),
            Servers::Cluster => Duration::from_secs(10),
        }
    }

    fn topology(&self) -> Topology {
        let options = TopologyOptions {
            ack_wait: self.ack_wait(),
            replicas: Some(u8::try_from(self.nodes()).expect("1 or 3")),
            ..TopologyOptions::default()
        };
        Topology::with(&prefix(), options)
    }

    fn plan(&self) -> Vec<Strike> {
        plan(&PlanConfig {
            seed: self.seed,
            faults: self.faults,
            broker_kills: self.broker_kills,
            lasts: self.lasts,
            ack_wait: self.ack_wait(),
            processes: ROLES.to_vec(),
        })
    }

    fn mix(&self) -> Mix {
        Mix {
            seed: self.seed,
            // Who does not wait tells when jobs are accepted.
            polled_percent: match self.servers {
                Servers::One => 5,
                Servers::Cluster => 50,
            },
            kinds: Kinds::All,
        }
    }
}

/// Runs and audits.
pub async fn run(config: &Config) -> Report {
    let folder = TempDir::with_prefix("fresco-chaos-").expect("a temporary folder can be made");
    let cluster = Cluster::start(config.nodes());
    let urls = cluster.urls();
    let bus_config = BusConfig::new(urls.clone(), prefix(), Role::Operator);
    let bus = Bus::connect(&bus_config).await.expect("addresses are some");
    cluster::provision(&bus, &config.topology()).await;
    let streams = cluster::streams(&prefix());
    cluster.healthy(&streams).await;

    let gateways: Vec<u16> = (0..2).map(|_| free_port()).collect();
    let recipes = recipes(config, &cluster, &gateways, folder.path());
    let crew = Crew::start(cluster, recipes, streams, folder.path());
    let gateways: Vec<_> = gateways
        .iter()
        .map(|port| format!("http://127.0.0.1:{port}"))
        .collect();
    ready(&gateways).await;

    let started = Instant::now();
    let (entries, crew) = load(config, gateways, crew).await;
    let took = started.elapsed();
    let quiet = quiet(&bus).await;
    let stored = stored::read(&urls, &bus, &prefix()).await;
    let mut violations = audit::violations(&entries, &stored);
    violations.extend(crew.tally.complaints.iter().cloned());
    violations
        .extend((!quiet).then(|| format!("the queues are not quiet within {QUIET_WITHIN:?}")));
    let tally: Tally = crew.tally.clone();
    drop(crew);
    Report {
        seed: config.seed,
        took,
        entries,
        stored,
        tally,
        logged: logged(folder.path()),
        logs: (config.logs == Logs::Always || !violations.is_empty()).then(|| folder.keep()),
        violations,
    }
}

/// Attempts of a worker: on a run's worst day a job loses its worker two or three times for no fault of its own.
const ATTEMPTS_MAX: u32 = 5;

fn recipes(config: &Config, cluster: &Cluster, ports: &[u16], folder: &Path) -> Vec<Recipe> {
    let engine = (TABLE, order::rules());
    let deployment = Deployment::new(PREFIX, cluster, config.ack_wait(), engine, folder);
    let recipe = |role: Role, number: usize| match role {
        Role::Gateway => deployment.gateway(number, ports[number], JOB_TIMEOUT),
        Role::ArBatcher | Role::Denoiser => deployment.worker(role, number, ATTEMPTS_MAX),
        Role::Operator => deployment.watcher(number),
    };
    let all = ROLES
        .into_iter()
        .flat_map(|(role, count)| (0..count).map(move |i| (role, i)));
    all.map(|(role, number)| recipe(role, number)).collect()
}

async fn ready(gateways: &[String]) {
    for gateway in gateways {
        crate::fleet::until("a gateway is ready", || async {
            let (status, _) = http::text(&format!("{gateway}/readyz")).await?;
            status.is_success().then_some(())
        })
        .await;
    }
}

/// Clients and strikes side by side, until both have had enough and everything is up again.
async fn load(config: &Config, gateways: Vec<String>, crew: Crew) -> (Vec<Entry>, Crew) {
    let (plan_over, clients_left) = (CancellationToken::new(), CancellationToken::new());
    let clients = Arc::new(Clients {
        gateways,
        mix: config.mix(),
        run: format!("chaos-{}", config.seed),
        requests: config.requests,
        plan_over: plan_over.clone(),
        next: AtomicUsize::new(0),
    });
    let mut waiting = JoinSet::new();
    for _ in 0..config.clients {
        let clients = Arc::clone(&clients);
        waiting.spawn(async move { clients.run().await });
    }
    let mut strikes = JoinSet::new();
    strikes.spawn(strike(
        crew,
        config.clone(),
        plan_over,
        clients_left.clone(),
    ));
    let entries = waiting.join_all().await.into_iter().flatten().collect();
    clients_left.cancel();
    let crew = strikes.join_next().await.expect("one task was spawned");
    (entries, crew.expect("the strikes go well"))
}

async fn strike(
    mut crew: Crew,
    config: Config,
    plan_over: CancellationToken,
    clients_left: CancellationToken,
) -> Crew {
    let started = Instant::now();
    let mut due = config.plan();
    while !(due.is_empty() && clients_left.is_cancelled() && crew.is_whole()) {
        let now = started.elapsed();
        let mut later = Vec::with_capacity(due.len());
        for next in due {
            // What is not up, because poison has just aborted it, is struck when it is.
            if next.at > now || !crew.strike(&next).await {
                later.push(next);
            }
        }
        due = later;
        crew.tend();
        if due.is_empty() && crew.is_whole() && !plan_over.is_cancelled() {
            if config.servers == Servers::Cluster {
                roll(&mut crew).await;
            }
            plan_over.cancel();
        }
        sleep(LOOK).await;
    }
    crew
}

/// Each node of a cluster is ended as an operator does it, and the next one only when the last is back in full.
async fn roll(crew: &mut Crew) {
    let streams = cluster::streams(&prefix());
    for node in 0..crew.cluster.size() {
        while !crew.cluster.is_healthy(&streams).await {
            crew.tend();
            sleep(LOOK).await;
        }
        crew.note_broker(format!("lame duck of n{node}"));
        crew.cluster.node(node).lame_duck();
        while !crew.cluster.node(node).has_ended() {
            crew.tend();
            sleep(LOOK).await;
        }
        crew.cluster.node(node).start_again();
    }
}

/// Whether the queues run empty.
pub async fn quiet(bus: &Bus) -> bool {
    let end = Instant::now() + QUIET_WITHIN;
    while Instant::now() < end {
        let queues = bus.queues().await;
        let left = queues.map(|queues| {
            let [ar, denoise] = [queues.ar, queues.denoise].map(|queue| queue.queued + queue.held);
            ar + denoise
        });
        if left.is_ok_and(|left| left == 0) {
            return true;
        }
        sleep(Duration::from_millis(100)).await;
    }
    false
}

/// Counters end with their process; its log stays.
fn logged(folder: &Path) -> Logged {
    let files = std::fs::read_dir(folder).expect("the folder is ours");
    let mut logged = Logged::default();
    for file in files
        .flatten()
        .filter(|file| file.path().extension().is_some_and(|ext| ext == "log"))
    {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        logged.suppressed += count("another result was first");
        logged.given_back_for_dead += count("worker is dead: its messages go to others");
    }
    logged
}
