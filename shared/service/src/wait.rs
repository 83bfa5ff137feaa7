//! Waiting for what another process has to do first.

use std::time::Duration;

use crate::{Health, exit};

/// Between two tries. A person waits for this at a first start, so it is short; one try costs the broker 1 ms.
const PERIOD: Duration = Duration::from_millis(250);

/// Tries until it works. Meanwhile `/readyz` tells the reason, and each new reason is logged once.
pub async fn until_ok<T, E, F>(what: &str, health: &Health, mut attempt: impl FnMut() -> F) -> T
where
    E: std::error::Error + 'static,
    F: Future<Output = Result<T, E>>,
{
    let mut told = String::new();
    loop {
        let reason = match attempt().await {
            Ok(value) => return value,
            Err(error) => exit::chain(&error),
        };
        if reason != told {
            tracing::warn!(what, reason, "not there yet, waiting");
            health.set_not_ready(reason.clone());
            told = reason;
        }
        tokio::time::sleep(PERIOD).await;
    }
}
