//! A worker whose engine failed too often in a row takes nothing until a self-test succeeds.

use batching::self_test_pauses;
use service::DeviceThreadDied;
use tokio::time::{sleep, timeout};

use super::Worker;

impl Worker<'_> {
    /// Returns when the engine works again, or the worker is to stop.
    pub(super) async fn quarantine(&mut self, failures: u32) -> Result<(), DeviceThreadDied> {
        self.counters.worker.quarantines.inc();
        let why = format!("the engine failed {failures} times in a row");
        tracing::error!(
            reason = why,
            "taking no more work until a self-test succeeds"
        );
        self.tell(Some(why.clone()));
        let stop = self.stop.clone();
        for pause in self_test_pauses() {
            let test = async {
                sleep(pause).await;
                let test = self.engine.call(|engine| engine.self_test());
                // A device that hangs heals with its process, if at all.
                timeout(self.retry.stall_max, test)
                    .await
                    .map_err(|_| DeviceThreadDied)?
            };
            match stop.run_until_cancelled(test).await.transpose()? {
                None => return Ok(()),
                Some(Ok(())) => break,
                Some(Err(error)) => {
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
        self.health.set_quarantine(reason.as_deref());
        self.member.presence.quarantine(reason);
    }
}
