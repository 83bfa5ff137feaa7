//! How a process stops: a signal cancels the token, every task sees it, gives back what it holds and returns, and
//! the tracker waits for all of them up to the grace period.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The stop signal and the tasks that have to see it.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Cancelled when the process shall stop.
    pub token: CancellationToken,
    /// Every task of the process.
    pub tracker: TaskTracker,
}

impl Shutdown {
    /// Cancels the token at the first SIGTERM, SIGINT or SIGHUP (the terminal is gone).
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let (mut terminate, mut interrupt) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        let mut hangup = signal(SignalKind::hangup())?;
        let token = shutdown.token.clone();
        shutdown.tracker.spawn(async move {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                _ = hangup.recv() => "SIGHUP",
                () = token.cancelled() => return,
            };
            tracing::info!(signal = name, "stopping");
            token.cancel();
        });
        Ok(shutdown)
    }

    /// Waits for every task, at most `grace`; says whether all ended.
    pub async fn finish(&self, grace: Duration) -> bool {
        self.token.cancel();
        self.tracker.close();
        let ended = tokio::time::timeout(grace, self.tracker.wait())
            .await
            .is_ok();
        if !ended {
            tracing::warn!(
                tasks = self.tracker.len(),
                grace_s = grace.as_secs_f64(),
                "grace period is over, tasks are still running"
            );
        }
        ended
    }
}
