//! A worker whose engine failed too often in a row takes nothing until a self-test succeeds.

use std::time::Duration;

use protocol::WorkerState;
use service::DeviceThreadDied;
use tokio::time::{sleep, timeout};

use super::Worker;

/// Pause before the first self-test: what was bad may have been three bad prompts.
const SELF_TEST_PAUSE_MIN: Duration = Duration::from_secs(2);

/// Pause between later ones: a broken device does not heal by being asked, a restarted driver is noticed in a minute.
const SELF_TEST_PAUSE_MAX: Duration = Duration::from_secs(60);

impl Worker<'_> {
    /// Returns when the engine works again, or the worker is to stop.
    pub(super) async fn quarantine(&mut self, failures: u32) -> Result<(), DeviceThreadDied> {
        self.counters.quarantines.inc();
        let why = format!("the engine failed {failures} times in a row");
        tracing::error!(
            reason = why,
            "taking no more work until a self-test succeeds"
        );
        self.tell(Some(why.clone()));
        let (stop, mut pause) = (self.stop.clone(), SELF_TEST_PAUSE_MIN);
        loop {
            let test = async {
                sleep(pause).await;
                let test = self.engine.call(|engine| engine.self_test());
                // A device that hangs heals with its process, if at all.
                timeout(self.stall_max, test)
                    .await
                    .map_err(|_| DeviceThreadDied)?
            };
            match stop.run_until_cancelled(test).await.transpose()? {
                None => return Ok(()),
                Some(Ok(())) => break,
                Some(Err(error)) => {
                    tracing::error!(%error, "self-test failed");
                    self.tell(Some(format!("{why}; self-test: {}", error.text)));
                    pause = (pause * 2).min(SELF_TEST_PAUSE_MAX);
                }
            }
        }
        tracing::info!("self-test succeeded, taking work again");
        self.breaker.succeeded();
        self.tell(None);
        Ok(())
    }

    /// In its health and to the fleet.
    fn tell(&self, reason: Option<String>) {
        match &reason {
            Some(reason) => self.health.set_not_ready(reason.clone()),
            None => self.health.set_ready(),
        }
        self.member.presence.update(|now| {
            now.state = if reason.is_some() {
                WorkerState::Quarantined
            } else {
                WorkerState::Idle
            };
            (now.held, now.reason) = (Vec::new(), reason);
        });
    }
}
