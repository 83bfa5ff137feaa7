//! Waiting for what has no event to wait on.

use std::{
    fs,
    time::{Duration, Instant},
};

use super::START_WITHIN;
use crate::process::Process;

/// Asks until there is an answer: for what has no event to wait on, such as another process's readiness.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + START_WITHIN;
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(
            Instant::now() < deadline,
            "waited {START_WITHIN:?} until {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The URL that `fresco up` writes to `url_file` once everything is ready.
pub async fn until_up(process: &mut Process, url_file: &str) -> String {
    let url = until("fresco up is ready", || {
        assert_eq!(process.ended(), None, "{}", process.log());
        let url = fs::read_to_string(url_file)
            .ok()
            .filter(|url| !url.trim().is_empty());
        async move { url }
    });
    url.await.trim().to_owned()
}
