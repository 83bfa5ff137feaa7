//! A deployment over hosts: the broker's, or those of three, the gateway's, one that writes, one or two that paint; and the
//! client's, where the test is. Replay engines; on the first broker's host `fresco watch` looks after the dead.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    process::Command,
    sync::{Arc, atomic::AtomicUsize},
    time::Duration,
};

use messaging::{Bus, BusConfig};
use protocol::{
    JobId, Prefix, Role, WorkerPresence,
    topology::{Topology, TopologyOptions},
};
use replay::{ArTimes, DenoiseTimes, Table};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::Network;
use crate::{
    binary,
    broker::Broker,
    chaos::{Clients, Entry, Kinds, Mix, quiet, stored, violations},
    cluster,
    fleet::until,
    http,
    process::Process,
};

/// Long beside a sign of life, short beside a cut.
const ACK_WAIT: Duration = Duration::from_secs(3);

/// The same where an election takes 4 to 8 s, in which nobody can give a sign of life.
const ACK_WAIT_OF_CLUSTER: Duration = Duration::from_secs(12);

/// AR in half a second, a picture of four steps in 1.6 s.
const TABLE: Table = Table {
    ar: ArTimes::new(&[(1, 500.0), (2, 520.0)], 260),
    denoise: DenoiseTimes {
        step_ms: 400.0,
        decode_ms: 2.0,
    },
};

/// Enough to keep four denoisers busy: each asks for 2.5 pictures at once, on average.
const CLIENTS: usize = 6;

/// A job that is cut off twice still has time.
const JOB_TIMEOUT_S: &str = "120";

const PREFIX: &str = "hosts";

/// Where the broker and its watcher are.
pub const BROKER: &str = "broker";
/// Where three brokers are, each on a host of its own.
pub const BROKERS: [&str; 3] = [BROKER, "broker-1", "broker-2"];
/// Where the gateway is.
pub const GATEWAY: &str = "gateway";
/// Where the AR-batcher is.
pub const AR: &str = "ar";
/// Where two denoisers are.
pub const PAINT_A: &str = "paint-a";
/// Where the other two are, if there are any.
pub const PAINT_B: &str = "paint-b";
const CLIENT: &str = "client";

/// A running deployment. The order is that of the end: processes before their hosts.
pub struct Site {
    workers: Vec<Worker>,
    _others: Vec<Process>,
    brokers: Vec<Broker>,
    bus: Bus,
    gateway: String,
    folder: TempDir,
    /// The hosts.
    pub network: Network,
}

struct Worker {
    host: &'static str,
    process: Process,
}

fn prefix() -> Prefix {
    PREFIX.parse().expect("allowed characters")
}

/// One on each of these hosts, which know each other.
fn start_brokers(network: &Network, hosts: &[&str]) -> Vec<Broker> {
    let routes = hosts.iter().map(|host| (network.address(host), 6222));
    let routes: Vec<_> = routes.map(SocketAddr::from).collect();
    let start = |(node, host): (usize, &&str)| {
        let config = cluster::config(node, &routes);
        network.inside(host, || Broker::start_on(network.address(host), &config))
    };
    hosts.iter().enumerate().map(start).collect()
}

impl Site {
    /// With a broker on each of `brokers` and two denoisers on each of `painters`; or why there can be no hosts here. This
    /// thread is the client's from now on.
    pub async fn start(
        brokers: &[&'static str],
        painters: &[&'static str],
    ) -> Result<Self, String> {
        let hosts = [brokers, &[GATEWAY, AR, CLIENT], painters].concat();
        let network = Network::start(&hosts)?;
        network.enter(CLIENT);
        let folder = TempDir::with_prefix("fresco-hosts-").expect("a temporary folder can be made");
        let brokers = start_brokers(&network, brokers);
        let urls: Vec<_> = brokers.iter().map(Broker::url).collect();
        let config = BusConfig::new(urls.clone(), prefix(), Role::Operator);
        let bus = Bus::connect(&config).await.expect("an address");
        let mut site = Self {
            workers: Vec::new(),
            _others: Vec::new(),
            gateway: format!("http://{}:8080", network.address(GATEWAY)),
            brokers,
            bus,
            folder,
            network,
        };
        cluster::provision(&site.bus, &Topology::with(&prefix(), site.options())).await;
        site.until_brokers_agree().await;
        site.start_processes(painters);
        until("the gateway is ready", || async {
            let (status, _) = http::text(&format!("{}/readyz", site.gateway)).await?;
            status.is_success().then_some(())
        })
        .await;
        until("every worker is listed", || async {
            (site.listed().len() == site.workers.len()).then_some(())
        })
        .await;
        Ok(site)
    }

    fn urls(&self) -> Vec<String> {
        self.brokers.iter().map(Broker::url).collect()
    }

    fn options(&self) -> TopologyOptions {
        TopologyOptions {
            ack_wait: match self.brokers.len() {
                1 => ACK_WAIT,
                _ => ACK_WAIT_OF_CLUSTER,
            },
            replicas: Some(u8::try_from(self.brokers.len()).expect("1 or 3")),
            ..TopologyOptions::default()
        }
    }

    /// Waits until every copy of everything is up to date.
    pub async fn until_brokers_agree(&self) {
        cluster::healthy(&self.urls(), &cluster::streams(&prefix())).await;
    }

    /// Where the broker is that leads the queue of those who paint.
    pub async fn leader(&self) -> &'static str {
        let queue = Topology::new(&prefix()).denoise.name;
        let node = cluster::leader(&self.urls(), &queue).await;
        BROKERS[node.expect("there is no election")]
    }

    fn start_processes(&mut self, painters: &[&'static str]) {
        let file = |name: &str, bytes: &[u8]| {
            let file = self.folder.path().join(name);
            fs::write(&file, bytes).expect("the folder is ours");
            file.to_str().expect("temporary paths are text").to_owned()
        };
        let table = serde_json::to_vec(&TABLE).expect("a table is JSON");
        let times = file("times.json", &table);
        let listen = self.gateway.replace("http://", "");
        let gateway = ["--listen", &listen, "--job-timeout-s", JOB_TIMEOUT_S];
        let replay = ["--engine", "replay", "--times", &times];
        let system: Vec<_> = self.brokers.iter().map(Broker::system_url).collect();
        let system = system.join(",");
        let ack_wait = self.options().ack_wait.as_secs().to_string();
        let replicas = self.brokers.len().to_string();
        let watch = ["watch", "--system-url", &system, "--ack-wait-s", &ack_wait];
        let watch = [&watch[..], &["--replicas", &replicas]].concat();
        let others = [
            self.process(BROKER, "fresco", "watch", &watch),
            self.process(GATEWAY, "fresco-gateway", "gateway", &gateway),
        ];
        self._others.extend(others);
        let writes = [&replay[..], &["--no-prior-cache"]].concat();
        let process = self.process(AR, "fresco-ar-batcher", "ar-batcher", &writes);
        self.workers.push(Worker { host: AR, process });
        for (host, number) in painters.iter().flat_map(|host| [(host, 0), (host, 1)]) {
            let name = format!("{host}-{number}");
            let process = self.process(host, "fresco-denoiser", &name, &replay);
            self.workers.push(Worker { host, process });
        }
    }

    fn process(&self, host: &str, program: &str, name: &str, flags: &[&str]) -> Process {
        let (url, probes) = (
            self.urls().join(","),
            format!("{}:0", self.network.address(host)),
        );
        let mut flags = flags.to_vec();
        flags.extend(["--nats-url", &url, "--prefix", PREFIX]);
        if program != "fresco" {
            flags.extend(["--health-listen", &probes]);
        }
        let start = || Process::start(&binary(program), name, &flags, self.folder.path());
        self.network.inside(host, start)
    }

    /// What `fresco workers` says: each worker by its process. The gateway is none.
    pub fn listed(&self) -> BTreeMap<u32, WorkerPresence> {
        let url = self.urls().join(",");
        let mut fresco = Command::new(binary("fresco"));
        fresco.args(["workers", "--json", "--nats-url", &url, "--prefix", PREFIX]);
        let output = fresco.output().expect("fresco is built");
        let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let workers: Vec<WorkerPresence> =
            serde_json::from_value(told["workers"].clone()).unwrap_or_default();
        let workers = workers
            .into_iter()
            .filter(|worker| worker.role != Role::Gateway);
        workers.map(|worker| (worker.process, worker)).collect()
    }

    /// The same without a program for each look.
    pub async fn workers(&self) -> Option<Vec<WorkerPresence>> {
        self.bus.workers().await.ok()
    }

    /// How many workers there are.
    pub fn workers_count(&self) -> usize {
        self.workers.len()
    }

    /// The gateway's URL.
    pub fn gateway(&self) -> &str {
        &self.gateway
    }

    /// The workers of a host, by their processes.
    pub fn processes(&self, host: &str) -> Vec<u32> {
        let of_host = self.workers.iter().filter(|worker| worker.host == host);
        of_host.map(|worker| worker.process.id()).collect()
    }

    /// Clients ask for one job after the other while `act` acts. What they were told, and what it returned.
    pub async fn while_asked<T>(&self, act: impl Future<Output = T>) -> (Vec<Entry>, T) {
        let plan_over = CancellationToken::new();
        let clients = Arc::new(Clients {
            gateways: vec![self.gateway.clone()],
            mix: Mix {
                seed: 20_261_201,
                polled_percent: 30,
                kinds: Kinds::Pictures,
            },
            run: "hosts".to_owned(),
            requests: 0,
            plan_over: plan_over.clone(),
            next: AtomicUsize::new(0),
        });
        let mut asking = JoinSet::new();
        for _ in 0..CLIENTS {
            let clients = Arc::clone(&clients);
            asking.spawn(async move { clients.run().await });
        }
        let acted = act.await;
        plan_over.cancel();
        (
            asking.join_all().await.into_iter().flatten().collect(),
            acted,
        )
    }

    /// Everything that was asked for has its pictures, each once and the right one, and the queues are empty. `other` is a job
    /// that is not in the books.
    pub async fn audit(&self, entries: &[Entry], other: Option<JobId>) {
        assert!(!entries.is_empty(), "nothing was asked for");
        assert!(quiet(&self.bus).await, "the queues are not quiet");
        self.until_brokers_agree().await;
        let mut stored = stored::read(&self.urls(), &self.bus, &prefix()).await;
        stored.jobs.retain(|job, _| Some(*job) != other);
        stored.results.retain(|output, _| Some(output.job) != other);
        let mut found = violations(entries, &stored);
        let ended = stored.results.iter();
        let failed =
            ended.filter_map(|(output, result)| Some((output, result.outcome.as_ref().err()?)));
        found.extend(failed.map(|(output, error)| format!("output {output} ended with {error}")));
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    /// The sum of a counter over the workers of a host, which are all there.
    pub async fn counted(&self, host: &str, name: &str) -> u64 {
        let (listed, mut sum) = (self.listed(), 0);
        for process in self.processes(host) {
            let probes = listed[&process]
                .health_address
                .expect("workers answer probes");
            let metrics = http::text(&format!("http://{probes}/metrics")).await;
            let (_, metrics) = metrics.expect("it can be reached");
            let of_name = |line: &str| {
                line.strip_prefix(name)?
                    .strip_prefix("_total ")?
                    .parse::<u64>()
                    .ok()
            };
            let count = metrics.lines().find_map(of_name);
            sum += count.unwrap_or_else(|| panic!("no counter {name} in:\n{metrics}"));
        }
        sum
    }
}
