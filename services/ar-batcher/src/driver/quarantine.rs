//! A batcher whose engine failed too often in a row holds nothing until a self-test succeeds.

use batching::self_test_pauses;
use tokio::time::{sleep, timeout};

use super::Driver;
use crate::engine::EngineError;

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
        for pause in self_test_pauses() {
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
        self.parts.health.set_quarantine(reason.as_deref());
        self.parts.bench.member.presence.quarantine(reason);
    }
}
