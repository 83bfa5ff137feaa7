//! A whole deployment of a test's own: broker, gateway, AR-batcher, denoisers, each a process.

mod counters;
mod ending;

use std::{fs, path::Path, time::Duration};

use messaging::Bus;
use protocol::{OutputId, Role, WorkerPresence, WorkerState};
use replay::{Rule, Table};
use tempfile::TempDir;

use crate::{api::Api, binary, brokers::Brokers, cluster, http, process::Process};

mod flags;
mod logs;
mod size;
mod waiting;
mod watched;

use self::flags::{ar_engine_flags, engine_flags, write_faults};

pub use self::{
    ending::END_WITHIN,
    size::{Engine, QUICK, REPLAY_ACK_WAIT, Size},
    waiting::{until, until_up},
};

/// Starting processes, loading models: generous, because a loaded machine is not a failure.
pub const START_WITHIN: Duration = Duration::from_secs(60);

/// Whether equal requests share prior tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PriorCache {
    /// As a deployment has it.
    On,
    /// Each request is written anew: a test that compares pictures would compare a picture with itself.
    Off,
}

/// Flags of an AR-batcher whose rows run together, as those of a native one do.
pub const BATCHED: &[&str] = &["--admission", "batched"];

/// A running deployment.
pub struct Fleet {
    /// The broker's own process, or processes.
    pub broker: Brokers,
    /// The test's own connection.
    pub bus: Bus,
    /// The API's URL.
    pub gateway: String,
    /// In the order of start.
    pub denoisers: Vec<Process>,
    /// The AR-batcher.
    pub ar_batcher: Process,
    /// The gateway's process.
    pub gateway_process: Process,
    worker_flags: Vec<String>,
    ar_flags: Vec<String>,
    // Last: the folder goes after the processes that write into it.
    folder: TempDir,
}

impl Fleet {
    /// Starts everything and waits until the gateway is ready and every worker is idle.
    pub async fn start(size: Size) -> Self {
        Self::start_with(size, &[]).await
    }

    /// A replay fleet with an empty script.
    pub async fn replay(denoisers: usize, table: Table) -> Self {
        Self::replay_with(denoisers, table, &[]).await
    }

    /// The same with these flags for the AR-batcher besides.
    pub async fn replay_writing(
        denoisers: usize,
        table: Table,
        ar_flags: &'static [&'static str],
    ) -> Self {
        let size = Size {
            ar_flags,
            ..Size::replay(denoisers, table)
        };
        Self::start_replay(size, &[]).await
    }

    /// The same with these flags for every worker besides.
    pub async fn replay_with(denoisers: usize, table: Table, flags: &[&str]) -> Self {
        Self::start_replay(Size::replay(denoisers, table), flags).await
    }

    /// One denoiser, [`QUICK`] engines with an empty script, and these flags for every process besides, the gateway's too.
    pub async fn quick(flags: &[&str]) -> Self {
        let size = Size {
            shell_flags: flags.iter().map(|&flag| flag.to_owned()).collect(),
            ..Size::replay(1, QUICK)
        };
        Self::start_replay(size, &[]).await
    }

    async fn start_replay(size: Size, flags: &[&str]) -> Self {
        let fleet = Self::start_with(size, flags).await;
        fleet.script(&[]);
        fleet
    }

    /// As [`Fleet::start`], with these flags for every worker besides.
    pub async fn start_with(size: Size, flags: &[&str]) -> Self {
        Self::start_whole(size, flags, PriorCache::Off).await
    }

    /// As [`Fleet::start`], with the cache of prior tokens that other fleets do without.
    pub async fn start_with_prior_cache(size: Size) -> Self {
        Self::start_whole(size, &[], PriorCache::On).await
    }

    async fn start_whole(size: Size, flags: &[&str], prior_cache: PriorCache) -> Self {
        let broker = Brokers::start();
        let folder = TempDir::with_prefix("fresco-e2e-").expect("a temporary folder can be made");
        let bus = broker.connect().await;
        cluster::provision(&bus, &broker.topology(size.ack_wait)).await;

        let listen_file = folder.path().join("gateway.address");
        let listen_text = listen_file.to_str().expect("temporary paths are text");
        let shell_flags = |role: Role| [broker.flags(role), size.shell_flags.clone()].concat();
        let listen = ["--listen", "127.0.0.1:0", "--listen-file", listen_text];
        let gateway_flags = [
            shell_flags(Role::Gateway),
            listen.map(str::to_owned).to_vec(),
        ];
        let gateway_process = started(
            "fresco-gateway",
            "gateway",
            &gateway_flags.concat(),
            &folder,
        );
        let all_flags = |role: Role, engine: Vec<String>| -> Vec<String> {
            let more = flags.iter().map(ToString::to_string);
            let common = shell_flags(role).into_iter().chain(more);
            common.chain(engine).collect()
        };
        let engine = engine_flags(&size.engine, folder.path());
        let ar_engine = ar_engine_flags(&size.engine).unwrap_or_else(|| engine.clone());
        let worker_flags = all_flags(Role::Denoiser, engine);
        let mut ar_flags = all_flags(Role::ArBatcher, ar_engine);
        if prior_cache == PriorCache::Off {
            ar_flags.push("--no-prior-cache".to_owned());
        }
        ar_flags.extend(size.ar_flags.iter().map(ToString::to_string));
        let ar_batcher = started("fresco-ar-batcher", "ar-batcher", &ar_flags, &folder);
        let denoiser = |name: &str| started("fresco-denoiser", name, &worker_flags, &folder);
        let denoisers = (0..size.denoisers)
            .map(|i| denoiser(&format!("denoiser-{i}")))
            .collect();

        let address = until("the gateway listens", || async {
            fs::read_to_string(&listen_file)
                .ok()
                .filter(|address| !address.is_empty())
        });
        let gateway = format!("http://{}", address.await.trim());
        let fleet = Self {
            broker,
            bus,
            gateway,
            denoisers,
            ar_batcher,
            gateway_process,
            worker_flags,
            ar_flags,
            folder,
        };
        fleet.until_idle(size.denoisers).await;
        until("the gateway is ready", || fleet.ready()).await;
        fleet
    }

    async fn ready(&self) -> Option<()> {
        let (status, _) = http::text(&format!("{}/readyz", self.gateway)).await?;
        status.is_success().then_some(())
    }

    /// Waits until `denoisers` denoisers and the AR-batcher are idle.
    pub async fn until_idle(&self, denoisers: usize) {
        until("every worker is idle", || async {
            let idle = |role| {
                move |worker: &&WorkerPresence| {
                    worker.role == role && worker.state == WorkerState::Idle
                }
            };
            let workers = self.bus.workers().await.ok()?;
            let of = |role| workers.iter().filter(idle(role)).count();
            (of(Role::Denoiser) >= denoisers && of(Role::ArBatcher) >= 1).then_some(())
        })
        .await;
    }

    /// Starts one more gateway, with these flags besides the usual ones, and waits until it is ready.
    pub async fn start_gateway(&self, name: &str, flags: &[&str]) -> (Process, Api) {
        let file = self.folder.path().join(format!("{name}.address"));
        let file_text = file.to_str().expect("paths of tests are text");
        let listen = ["--listen", "127.0.0.1:0", "--listen-file", file_text];
        let own = listen.iter().chain(flags).map(ToString::to_string);
        let flags: Vec<_> = self
            .broker
            .flags(Role::Gateway)
            .into_iter()
            .chain(own)
            .collect();
        let process = started("fresco-gateway", name, &flags, &self.folder);
        let address = until("the gateway listens", || async {
            fs::read_to_string(&file).ok()
        });
        let api = Api::new(&format!("http://{}", address.await));
        until("the gateway is ready", || async {
            api.readiness().await?.is_success().then_some(())
        })
        .await;
        (process, api)
    }

    /// Starts one more worker of the fleet's kind, for a test to keep.
    pub fn start_worker(&self, role: Role, name: &str) -> Process {
        let (program, flags) = match role {
            Role::ArBatcher => ("fresco-ar-batcher", &self.ar_flags),
            Role::Denoiser => ("fresco-denoiser", &self.worker_flags),
            Role::Gateway | Role::Operator => panic!("{role} is no worker"),
        };
        started(program, name, flags, &self.folder)
    }

    /// Waits until both queues are empty: nothing waits and nothing is held.
    pub async fn until_queues_empty(&self) {
        until("the queues are empty", || async {
            let queues = self.bus.queues().await.ok()?;
            let messages = [queues.ar, queues.denoise].map(|depth| depth.queued + depth.held);
            (messages == [0, 0]).then_some(())
        })
        .await;
    }

    /// Starts another AR-batcher in the place of one that is gone.
    pub fn replace_ar_batcher(&mut self) {
        self.replace_ar_batcher_with(&[]);
    }

    /// The same with these flags besides the usual ones.
    pub fn replace_ar_batcher_with(&mut self, flags: &[&str]) {
        let own = flags.iter().map(ToString::to_string);
        let flags: Vec<_> = self.ar_flags.iter().cloned().chain(own).collect();
        self.ar_batcher = started("fresco-ar-batcher", "ar-batcher-2", &flags, &self.folder);
    }

    /// Starts one more denoiser of the fleet's kind.
    pub fn add_denoiser(&mut self, name: &str) {
        let flags = &self.worker_flags;
        self.denoisers
            .push(started("fresco-denoiser", name, flags, &self.folder));
    }

    /// Starts one more denoiser, of a replay fleet, that suffers the faults in this file instead of the fleet's.
    pub fn add_denoiser_with_faults(&mut self, name: &str, faults: &Path) {
        let faults = faults.to_str().expect("paths of tests are text");
        let mut flags = self.worker_flags.clone();
        let at = flags.iter().position(|flag| flag == "--faults");
        let at = at.expect("a replay fleet's workers have a script");
        faults.clone_into(&mut flags[at + 1]);
        self.denoisers
            .push(started("fresco-denoiser", name, &flags, &self.folder));
    }

    /// The fleet's folder: of logs and scripts.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// From now on replay engines suffer these faults, and only these.
    pub fn script(&self, rules: &[Rule]) {
        write_faults(self.folder.path(), rules);
    }

    /// Waits until the AR-batcher says that a batch runs.
    pub async fn until_ar_runs(&self) {
        let process = self.ar_batcher.id();
        until("an AR batch runs", || async {
            let workers = self.bus.workers().await.ok()?;
            let busy = |worker: &WorkerPresence| {
                worker.process == process && worker.state == WorkerState::Busy
            };
            workers.iter().any(busy).then_some(())
        })
        .await;
    }

    /// Waits until a denoiser says that it works, and finds its process and output.
    pub async fn until_painting(&self) -> (usize, OutputId) {
        self.until_painting_but(None).await
    }

    /// The same, leaving out one denoiser: a dead one's last word stays for a while.
    pub async fn until_painting_but(&self, dead: Option<usize>) -> (usize, OutputId) {
        until("a denoiser paints", || async {
            let workers = self.bus.workers().await.ok()?;
            workers.into_iter().find_map(|worker| {
                let painting = worker.role == Role::Denoiser && worker.state == WorkerState::Busy;
                let index = self
                    .denoisers
                    .iter()
                    .position(|process| process.id() == worker.process)?;
                (painting && Some(index) != dead).then_some((index, worker.held.first()?.output))
            })
        })
        .await
    }

    /// What `/readyz` of the AR-batcher says, and whether it is ready.
    pub async fn ar_readiness(&self) -> Option<(bool, String)> {
        let workers = self.bus.workers().await.ok()?;
        let process = self.ar_batcher.id();
        let address = workers
            .iter()
            .find(|worker| worker.process == process)?
            .health_address?;
        let (status, text) = http::text(&format!("http://{address}/readyz")).await?;
        Some((status.is_success(), text))
    }
}

fn started(program: &str, name: &str, flags: &[String], folder: &TempDir) -> Process {
    let flags: Vec<_> = flags.iter().map(String::as_str).collect();
    Process::start(&binary(program), name, &flags, folder.path())
}
