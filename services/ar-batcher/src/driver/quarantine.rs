//! A batcher whose engine failed too often in a row holds nothing until a self-test succeeds.

use std::time::Duration;

use protocol::WorkerState;
use tokio::time::{sleep, timeout};

use super::Driver;
use crate::engine::EngineError;

/// Pause before the first self-test: what was bad may have been three bad prompts.
const SELF_TEST_PAUSE_MIN: Duration = Duration::from_secs(2);

/// Pause between later ones: a broken device does not heal by being asked, a restarted server is noticed in a minute.
const SELF_TEST_PAUSE_MAX: Duration = Duration::from_secs(60);

impl Driver<'_> {
    /// Returns when the engine works again.
    pub(super) async fn quarantine(&mut self, failures: u32) -> Result<(), EngineError> {
        self.parts.bench.counters.quarantines.inc();
        let why = format!("the engine failed {failures} times in a row");
        tracing::error!(
            reason = why,
            "taking no more work until a self-test succeeds"
        );
        self.give_back().await;
        self.tell(Some(why.clone()));
        let mut pause = SELF_TEST_PAUSE_MIN;
        loop {
            sleep(pause).await;
            // An engine that hangs heals with its process, if at all.
            let test = timeout(self.parts.retry.stall_max, self.parts.engine.self_test());
            let tested = test
                .await
                .map_err(|elapsed| EngineError::Gone(elapsed.into()))?;
            match tested? {
                Ok(()) => break,
                Err(error) => {
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
            Some(reason) => self.parts.health.set_not_ready(reason.clone()),
            None => self.parts.health.set_ready(),
        }
        self.parts.bench.member.presence.update(|now| {
            now.state = if reason.is_some() {
                WorkerState::Quarantined
            } else {
                WorkerState::Idle
            };
            (now.held, now.reason) = (Vec::new(), reason);
        });
    }
}
