//! The life of a role's process: runtime, telemetry, signals, work; telemetry ends last.

use tokio::runtime::Builder;

use crate::{ShellArgs, Shutdown, exit::Failure, telemetry};

/// How many threads a process's tasks run on, besides those of its device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// One: for who waits for a device or for others and computes little itself. Handing tasks from thread to thread was a
    /// fifth of a denoiser's cost with tiny pictures (measured).
    One,
    /// As many as there are cores.
    PerCore,
}

/// Runs `work` until it returns; the shutdown it is given is cancelled by a signal.
pub fn run<F>(
    role: &'static str,
    threads: Threads,
    shell: &ShellArgs,
    work: F,
) -> Result<(), Failure>
where
    F: AsyncFnOnce(Shutdown) -> Result<(), Failure>,
{
    let mut builder = match threads {
        Threads::One => Builder::new_current_thread(),
        Threads::PerCore => Builder::new_multi_thread(),
    };
    let runtime = builder.enable_all().build();
    let runtime = runtime.map_err(|error| Failure::failed(&error))?;
    runtime.block_on(async {
        let telemetry = telemetry::init(role, shell)?;
        let shutdown = Shutdown::on_signals().map_err(|error| Failure::failed(&error))?;
        let outcome = work(shutdown).await;
        drop(telemetry);
        outcome
    })
}
