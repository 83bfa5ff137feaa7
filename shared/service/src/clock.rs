//! The wall clock. Instants that cross processes are Unix milliseconds; everything inside a process uses
//! `tokio::time::Instant`, which tests can pause.

use std::time::{SystemTime, UNIX_EPOCH};

use protocol::UnixMillis;

/// Milliseconds since the Unix epoch; 0 on a machine whose clock stands before it.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads the wall clock"
)]
pub fn unix_millis() -> UnixMillis {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    UnixMillis::try_from(since.as_millis()).unwrap_or(UnixMillis::MAX)
}
