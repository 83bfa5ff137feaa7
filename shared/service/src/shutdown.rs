//! How a process stops: a signal cancels the token, every task sees it, gives back what it holds and returns, and
//! the tracker waits for all of them up to the grace period. A second signal says that whoever still waits is to wait no
//! longer.

use std::time::Duration;

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// A wish to stop this long after the first one is an impatient one. An earlier one is the same wish twice: a terminal's
/// Ctrl-C reaches a script and what it started, and the script passes it on.
pub const IMPATIENT_AFTER: Duration = Duration::from_secs(1);

/// The stop signal and the tasks that have to see it.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Cancelled when the process shall stop.
    pub token: CancellationToken,
    /// Cancelled after that, when nobody is to be kept waiting any more.
    pub hurry: CancellationToken,
    /// Every task of the process.
    pub tracker: TaskTracker,
}

impl Shutdown {
    /// Cancels the token at the first SIGTERM, SIGINT or SIGHUP (the terminal is gone), but for one that the caller had
    /// ignored, and `hurry` at one that comes [`IMPATIENT_AFTER`] it or later.
    pub fn on_signals() -> std::io::Result<Self> {
        let shutdown = Self::default();
        let signals = Signals::listen()?;
        let (token, hurry) = (shutdown.token.clone(), shutdown.hurry.clone());
        shutdown.tracker.spawn(async move {
            hurry
                .run_until_cancelled(obey(signals, token, &hurry))
                .await;
        });
        Ok(shutdown)
    }

    /// Waits for every task, at most `grace`; says whether all ended.
    pub async fn finish(&self, grace: Duration) -> bool {
        self.token.cancel();
        self.hurry.cancel();
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

async fn obey(mut signals: Signals, token: CancellationToken, hurry: &CancellationToken) {
    let signal = signals.recv().await;
    tracing::info!(signal, "stopping");
    token.cancel();
    let first = Instant::now();
    loop {
        let signal = signals.recv().await;
        if first.elapsed() >= IMPATIENT_AFTER {
            tracing::info!(signal, "nobody is kept waiting any more");
            hurry.cancel();
        }
    }
}

/// Whatever asks a process to stop.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Hangup,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: Hangup::listen()?,
        })
    }

    /// The next one's name. Cancellation safe.
    async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            () = self.hangup.recv() => "SIGHUP",
        }
    }
}

/// The end of the terminal, unless whoever started the process wants it to go on then (`nohup`): a handler would take that
/// wish back.
#[derive(Debug)]
pub struct Hangup(Option<Signal>);

impl Hangup {
    /// Listens from now on.
    pub fn listen() -> std::io::Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignores_hangup(&status);
        let signal = (!ignored).then(|| signal(SignalKind::hangup()));
        signal.transpose().map(Self)
    }

    /// The next SIGHUP. Cancellation safe.
    pub async fn recv(&mut self) {
        match &mut self.0 {
            Some(signal) => signal.recv().await,
            None => std::future::pending().await,
        };
    }
}

/// Whether a process with this `/proc/PID/status` ignores SIGHUP: the lowest bit of its mask, because it is signal 1.
fn ignores_hangup(status: &str) -> bool {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_ignores_the_end_of_its_terminal_by_one_bit() {
        let table = [
            ("Name:\tx\nSigIgn:\t0000000000000001\nSigCgt:\t0\n", true),
            ("SigIgn:\t0000000000001007\n", true),
            (
                "SigIgn:\t0000000000001006\nSigCgt:\t0000000000000001\n",
                false,
            ),
            ("Name:\tx\n", false),
        ];
        for (status, wanted) in table {
            assert_eq!(ignores_hangup(status), wanted, "{status:?}");
        }
    }
}
