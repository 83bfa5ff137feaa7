//! The life of a role's process: runtime, telemetry, signals, work; telemetry ends last.

use crate::{ShellArgs, Shutdown, exit::Failure, telemetry};

/// Runs `work` until it returns; the shutdown it is given is cancelled by a signal.
pub fn run<F>(role: &'static str, shell: &ShellArgs, work: F) -> Result<(), Failure>
where
    F: AsyncFnOnce(Shutdown) -> Result<(), Failure>,
{
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::failed(&error))?;
    runtime.block_on(async {
        let telemetry = telemetry::init(role, shell)?;
        let shutdown = Shutdown::on_signals().map_err(|error| Failure::failed(&error))?;
        let outcome = work(shutdown).await;
        drop(telemetry);
        outcome
    })
}
