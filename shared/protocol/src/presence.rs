//! Who is there. Presence adds names to what the queues already say: it decides nothing about a job.

use std::{fmt, net::SocketAddr, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Message, OutputId, UnixMillis, WorkerId, ids::serde_as_text};

/// What a process does in the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// HTTP in, jobs out, results back.
    Gateway,
    /// Forms AR batches and runs them.
    ArBatcher,
    /// One device, one output at a time.
    Denoiser,
    /// The operator's command.
    Operator,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gateway => "gateway",
            Self::ArBatcher => "ar-batcher",
            Self::Denoiser => "denoiser",
            Self::Operator => "operator",
        })
    }
}

impl FromStr for Role {
    type Err = RoleError;
    fn from_str(text: &str) -> Result<Self, RoleError> {
        let all = [
            Self::Gateway,
            Self::ArBatcher,
            Self::Denoiser,
            Self::Operator,
        ];
        all.into_iter()
            .find(|role| role.to_string() == text)
            .ok_or(RoleError)
    }
}
serde_as_text!(Role);

/// A text that names no role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown role")]
pub struct RoleError;

/// Whether a worker takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerState {
    /// Its model is being loaded.
    Loading,
    /// It waits for work.
    Idle,
    /// It works.
    Busy,
    /// Its engine failed too often in a row; it takes nothing until a self-test succeeds.
    Quarantined,
    /// It finishes or gives back what it has and then exits.
    Draining,
}

impl WorkerState {
    /// Whether a worker in this state takes work, now or when it has done what it does.
    pub const fn takes_work(self) -> bool {
        matches!(self, Self::Idle | Self::Busy)
    }
}

/// What a busy worker works on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CurrentWork {
    /// The output; of an AR request, its first.
    pub output: OutputId,
    /// The subject that acknowledges its message: who knows it may give the message back for a dead worker.
    pub ack_subject: String,
    /// When it started.
    pub since: UnixMillis,
}

/// A process's sign of life, refreshed every [`crate::limits::PRESENCE_PERIOD`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkerPresence {
    /// Its name.
    pub worker: WorkerId,
    /// What it does.
    pub role: Role,
    /// Whether it takes work.
    pub state: WorkerState,
    /// Why it takes none, when it does not.
    pub reason: Option<String>,
    /// The name of its machine.
    pub host: String,
    /// Its operating-system process, on its host.
    pub process: u32,
    /// The device it computes on, such as `cpu` or `cuda:0`; a gateway has none.
    pub device: Option<String>,
    /// Which model it has loaded; a gateway has none.
    pub model_revision: Option<String>,
    /// Where it answers `/livez`, `/readyz` and `/metrics`.
    pub health_address: Option<SocketAddr>,
    /// The messages it holds: a denoiser's one, an AR-batcher's many.
    pub held: Vec<CurrentWork>,
    /// Outputs that this gateway has accepted and that have not ended; 0 for workers.
    pub outputs_open: u32,
}

impl Message for WorkerPresence {
    const KIND: &'static str = "worker_presence";
    /// Version 1 had one `current` work, no host, model, reason or open outputs.
    const VERSION: u16 = 2;
}
