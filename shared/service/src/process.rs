//! The life of a role's process: runtime, telemetry, signals, work; telemetry ends last.

use protocol::{Role, WorkerId};
use tokio::runtime::Builder;

use crate::{
    BusArgs, ShellArgs, Shutdown,
    exit::Failure,
    metrics::Metrics,
    open_files,
    telemetry::{self, Identity, push::Push},
};

/// How many threads a process's tasks run on, besides those of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// One: for who waits for a device or for others and computes little itself. Handing tasks from thread to thread was a
    /// fifth of a denoiser's cost with tiny pictures (measured).
    One,
    /// As many as there are cores.
    PerCore,
}

/// What a process is.
#[derive(Debug, Clone, Copy)]
pub struct Process<'a> {
    /// The name of its program.
    pub program: &'static str,
    /// What it does in its deployment.
    pub role: Role,
    /// What its tasks run on.
    pub threads: Threads,
    /// Where its deployment is.
    pub bus: &'a BusArgs,
    /// Everything else.
    pub shell: &'a ShellArgs,
}

/// Runs `work` until it returns; the shutdown it is given is cancelled by a signal. The name is what the fleet is to
/// know the process by: its spans have it already. What `work` registers among the metrics is pushed where flags say so.
pub fn run<F>(process: &Process<'_>, work: F) -> Result<(), Failure>
where
    F: AsyncFnOnce(Shutdown, WorkerId, Metrics) -> Result<(), Failure>,
{
    let mut builder = match process.threads {
        Threads::One => Builder::new_current_thread(),
        Threads::PerCore => Builder::new_multi_thread(),
    };
    let runtime = builder.enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(&error))?;
    runtime.block_on(async {
        let name = WorkerId::generate(process.role);
        let identity = Identity {
            service: process.program,
            deployment: process.bus.prefix.to_string(),
            instance: name.to_string(),
        };
        let telemetry = telemetry::init(&identity, process.shell)?;
        match open_files::take_all() {
            Ok(open_files_max) => tracing::debug!(open_files_max, "took what it may have"),
            Err(error) => tracing::warn!(%error, "the limit of open files stays as it is"),
        }
        let shutdown = Shutdown::on_signals().map_err(|error| Failure::failed(&error))?;
        let metrics = Metrics::new(process.role);
        let push = Push::start(&identity, &process.shell.traces, &metrics)?;
        let outcome = work(shutdown, name, metrics).await;
        if let Some(push) = push {
            push.end().await;
        }
        telemetry.end().await;
        outcome
    })
}
