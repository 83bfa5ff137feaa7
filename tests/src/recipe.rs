//! How to start each process of a deployment that replays, as often as it is killed.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use protocol::Role;
use replay::{Rule, Rules, Table};

use crate::{binary, cluster::Cluster, fleet::BATCHED, process::Process};

/// How to start a process.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// What it does in the deployment; an operator's is `fresco watch`.
    pub role: Role,
    /// Of its log.
    pub name: String,
    program: &'static str,
    flags: Vec<String>,
}

impl Recipe {
    /// Starts it; its log goes on where the last one's ended.
    pub fn start(&self, folder: &Path) -> Process {
        let flags: Vec<_> = self.flags.iter().map(String::as_str).collect();
        Process::start(&binary(self.program), &self.name, &flags, folder)
    }
}

/// What all processes of a deployment share.
#[derive(Debug, Clone)]
pub struct Deployment {
    prefix: String,
    urls: String,
    system_urls: String,
    /// What the watcher would make the streams with.
    nodes: String,
    ack_wait: String,
    times: String,
    faults: String,
}

impl Deployment {
    /// On `cluster`, with engines of these times and faults, whose files go into `folder`.
    pub fn new(
        prefix: &str,
        cluster: &Cluster,
        ack_wait: Duration,
        (table, rules): (Table, Vec<Rule>),
        folder: &Path,
    ) -> Self {
        let write = |name: &str, bytes: Vec<u8>| {
            let file: PathBuf = folder.join(name);
            std::fs::write(&file, bytes).expect("the folder is ours");
            file.to_str().expect("temporary paths are text").to_owned()
        };
        let table = serde_json::to_vec(&table).expect("a table is JSON");
        let rules = serde_json::to_vec(&Rules(rules)).expect("rules are JSON");
        Self {
            prefix: prefix.to_owned(),
            urls: cluster.urls().join(","),
            system_urls: cluster.system_urls().join(","),
            nodes: cluster.size().to_string(),
            ack_wait: ack_wait.as_secs().to_string(),
            times: write("times.json", table),
            faults: write("faults.json", rules),
        }
    }

    /// A gateway that listens on a port of its own, at each start the same.
    pub fn gateway(&self, number: usize, port: u16, job_timeout: Duration) -> Recipe {
        let (address, timeout) = (
            format!("127.0.0.1:{port}"),
            job_timeout.as_secs().to_string(),
        );
        let flags = ["--listen", &address, "--job-timeout-s", &timeout];
        self.recipe(Role::Gateway, number, "fresco-gateway", &flags)
    }

    /// An AR-batcher or a denoiser.
    pub fn worker(&self, role: Role, number: usize, attempts_max: u32) -> Recipe {
        // Each request is written anew: what a kill costs would not be seen where tokens are found.
        let (program, own): (_, &[&str]) = match role {
            Role::ArBatcher => ("fresco-ar-batcher", &["--no-prior-cache"]),
            _ => ("fresco-denoiser", &[]),
        };
        let attempts = attempts_max.to_string();
        let engine = [
            "--engine",
            "replay",
            "--times",
            &self.times,
            "--faults",
            &self.faults,
        ];
        // Every second batcher runs its rows in batches.
        let admission: &[&str] = match role {
            Role::ArBatcher if number % 2 == 1 => BATCHED,
            _ => &[],
        };
        let attempts = ["--attempts-max", &attempts];
        let flags = [&engine[..], &attempts, own, admission].concat();
        self.recipe(role, number, program, &flags)
    }

    /// `fresco watch`.
    pub fn watcher(&self, number: usize) -> Recipe {
        let flags = [
            "watch",
            "--log",
            "info",
            "--system-url",
            &self.system_urls,
            "--replicas",
            &self.nodes,
            "--ack-wait-s",
            &self.ack_wait,
        ];
        self.recipe(Role::Operator, number, "fresco", &flags)
    }

    fn recipe(&self, role: Role, number: usize, program: &'static str, flags: &[&str]) -> Recipe {
        let bus = ["--nats-url", &self.urls, "--prefix", &self.prefix];
        let flags = [flags, &bus].concat();
        Recipe {
            role,
            name: format!("{role}-{number}"),
            program,
            flags: flags.into_iter().map(str::to_owned).collect(),
        }
    }
}
