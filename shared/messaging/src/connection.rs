//! The connection's options and its state, as every task of ours sees it.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use async_nats::{ConnectOptions, Event, ServerError};
use protocol::{Prefix, WorkerId};
use tokio::sync::watch;

use crate::access::Credentials;

/// What a process calls its connection. The broker repeats it when the connection ends, so that whoever watches it
/// knows whose it was.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConnectionName {
    /// The deployment.
    pub prefix: Prefix,
    /// The process.
    pub worker: WorkerId,
}

impl fmt::Display for ConnectionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.prefix, self.worker)
    }
}

/// A connection that is none of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("connection name is not <prefix>/<worker>")]
pub struct ConnectionNameError;

impl FromStr for ConnectionName {
    type Err = ConnectionNameError;
    fn from_str(text: &str) -> Result<Self, ConnectionNameError> {
        let (prefix, worker) = text.split_once('/').ok_or(ConnectionNameError)?;
        Ok(Self {
            prefix: prefix.parse().map_err(|_| ConnectionNameError)?,
            worker: worker.parse().map_err(|_| ConnectionNameError)?,
        })
    }
}

/// Whether the broker can be reached. `epoch` grows at each (re)connection: who has asked the broker for something
/// under an older epoch asks again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Connection {
    /// Connected now.
    pub up: bool,
    /// Connections so far.
    pub epoch: u64,
}

/// A cut connection is noticed after two missed pings, in about 12 s at 5 s (measured); the client's default of
/// 60 s would take minutes.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// One try to connect, TLS and authentication included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The longest pause between two tries to reconnect: a broker that comes back finds its workers within it.
const RECONNECT_DELAY_MAX: Duration = Duration::from_millis(500);

/// The pause before the `attempt`-th try to reconnect: quick at first, for a broker that only restarts.
fn reconnect_delay(attempt: usize) -> Duration {
    let attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
    Duration::from_millis(50)
        .saturating_mul(attempt)
        .min(RECONNECT_DELAY_MAX)
}

/// Where it is noted what becomes of a connection.
pub(crate) struct Notes {
    /// Whether it is there.
    pub(crate) state: watch::Sender<Connection>,
    /// What the broker said last of something that the credential may not do.
    pub(crate) refusal: watch::Sender<Option<String>>,
}

/// How the broker begins to say that a credential may not do something. Its client has no kind for it.
const REFUSAL: &str = "permissions violation";

/// The options under which no message was lost in any of the measured failures.
pub(crate) fn options(name: &str, inbox: &str, notes: Notes) -> ConnectOptions {
    let notes = Arc::new(notes);
    ConnectOptions::new()
        .name(name)
        // Own inboxes per role: permissions can then keep one role from reading another's replies.
        .custom_inbox_prefix(inbox)
        .retry_on_initial_connect()
        .max_reconnects(None)
        .ping_interval(PING_INTERVAL)
        .connection_timeout(CONNECT_TIMEOUT)
        .reconnect_delay_callback(reconnect_delay)
        .event_callback(move |event| {
            let notes = Arc::clone(&notes);
            async move { note(&notes, &event) }
        })
}

/// The addresses without credentials, and those of the first address that has some. Taken as written, not
/// percent-decoded.
pub(crate) fn split_credentials(urls: &[String]) -> (Vec<String>, Option<Credentials>) {
    let (addresses, credentials): (Vec<_>, Vec<_>) = urls.iter().map(|url| split(url)).unzip();
    (addresses, credentials.into_iter().flatten().next())
}

fn split(url: &str) -> (String, Option<Credentials>) {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), url),
    };
    let Some((credentials, host)) = rest.rsplit_once('@') else {
        return (url.to_owned(), None);
    };
    let credentials = match credentials.split_once(':') {
        Some((user, password)) => Credentials::User(user.to_owned(), password.to_owned()),
        None => Credentials::Token(credentials.to_owned()),
    };
    (format!("{scheme}{host}"), Some(credentials))
}

fn note(notes: &Notes, event: &Event) {
    match event {
        Event::Connected => {
            notes.state.send_modify(|now| {
                *now = Connection {
                    up: true,
                    epoch: now.epoch + 1,
                }
            });
            tracing::info!("connected to the message broker");
        }
        Event::Disconnected | Event::Closed => {
            notes.state.send_modify(|now| now.up = false);
            tracing::warn!(%event, "no connection to the message broker");
        }
        // A missing permission shows nowhere else: the call itself only times out.
        Event::ServerError(error) => {
            tracing::error!(%error, "message broker reports an error");
            if let ServerError::Other(text) = error
                && text.to_lowercase().starts_with(REFUSAL)
            {
                notes.refusal.send_replace(Some(text.clone()));
            }
        }
        Event::SlowConsumer(_) => {
            tracing::error!(%event, "messages were dropped: this process reads too slowly")
        }
        Event::LameDuckMode | Event::Draining => {
            tracing::info!(%event, "message broker is about to leave")
        }
        Event::ClientError(error) => {
            tracing::warn!(%error, "message broker client reports an error")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connections_name_reads_back() {
        let name = ConnectionName {
            prefix: "fresco".parse().expect("allowed"),
            worker: WorkerId::generate(protocol::Role::Denoiser),
        };
        assert_eq!(name.to_string().parse(), Ok(name));
        for other in ["", "nats-cli", "a/B", "A/b"] {
            assert_eq!(other.parse::<ConnectionName>(), Err(ConnectionNameError));
        }
    }

    #[test]
    fn credentials_are_taken_out_of_an_address() {
        let user = |user: &str, password: &str| {
            Some(Credentials::User(user.to_owned(), password.to_owned()))
        };
        let table = [
            ("nats://host:4222", "nats://host:4222", None),
            ("host", "host", None),
            ("nats://a:p@ss@host:1", "nats://host:1", user("a", "p@ss")),
            ("a:b:c@host", "host", user("a", "b:c")),
            (
                "tls://t@host",
                "tls://host",
                Some(Credentials::Token("t".to_owned())),
            ),
        ];
        for (url, address, credentials) in table {
            assert!(split(url) == (address.to_owned(), credentials), "{url}");
        }
    }

    #[test]
    fn the_pause_between_reconnects_grows_to_its_limit() {
        assert_eq!(reconnect_delay(0), Duration::ZERO);
        assert_eq!(reconnect_delay(3), Duration::from_millis(150));
        assert_eq!(reconnect_delay(usize::MAX), RECONNECT_DELAY_MAX);
    }
}
