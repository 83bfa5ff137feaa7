//! What the broker's system account tells of connections: who came and who went, whichever account they are in.
//!
//! A connection of its own, because a system account sees no streams and the others do not see its events. It knows
//! nothing of workers beyond the names of their connections; what a lost connection means is its caller's to decide.

use std::fmt;

use async_nats::{Client, Subscriber};
use futures::StreamExt;
use protocol::{Prefix, Role, WorkerId};
use serde::Deserialize;
use tokio::sync::watch;

use crate::{
    access::Access,
    connection::{self, Connection, ConnectionName, Notes},
    error::BusError,
};

/// Of any account: the embedded broker's clients are in the global one, a site's in its own.
const CONNECTS: &str = "$SYS.ACCOUNT.*.CONNECT";
const DISCONNECTS: &str = "$SYS.ACCOUNT.*.DISCONNECT";

/// One connection, among all that a process ever had: a process that reconnects keeps its name and gets another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    /// The server's own id: client numbers start again with each server.
    pub server: String,
    /// The server's number of the client.
    pub client: u64,
}

/// What the system account tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SystemEvent {
    /// A process of the deployment has connected.
    Connected(WorkerId, ConnectionId),
    /// A connection of a process of the deployment has ended.
    Disconnected(WorkerId, ConnectionId),
    /// From now on events come.
    Watching,
    /// No events come until [`SystemEvent::Watching`]; those in between are lost.
    Blind,
}

/// A connection to the system account.
pub struct SystemWatch {
    name: ConnectionName,
    connects: Subscriber,
    disconnects: Subscriber,
    connection: watch::Receiver<Connection>,
    /// Keeps the connection open.
    _client: Client,
}

impl fmt::Debug for SystemWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SystemWatch({})", self.name)
    }
}

impl SystemWatch {
    /// Starts to connect, and keeps doing so, with `access` or the credentials in `urls`; tells of the other processes of
    /// `prefix`.
    pub async fn connect(
        urls: &[String],
        access: &Access,
        prefix: Prefix,
    ) -> Result<Self, BusError> {
        let name = ConnectionName {
            prefix,
            worker: WorkerId::generate(Role::Operator),
        };
        let (state, connection) = watch::channel(Connection::default());
        let notes = Notes {
            state,
            // Its subscriptions are all it does: `Watching` tells whether they are there.
            refusal: watch::Sender::new(None),
        };
        let options = connection::options(&name.to_string(), "_INBOX_system", notes);
        let (options, addresses) = access.apply(options, urls)?;
        let client = options
            .connect(addresses.as_slice())
            .await
            .map_err(|source| BusError::Connect(source.into()))?;
        let subscribe = async |subject: &'static str| {
            let subscriber = client.subscribe(subject).await;
            subscriber.map_err(|source| BusError::Unavailable {
                what: subject.to_owned(),
                source: source.into(),
            })
        };
        Ok(Self {
            connects: subscribe(CONNECTS).await?,
            disconnects: subscribe(DISCONNECTS).await?,
            name,
            connection,
            _client: client,
        })
    }

    /// The next event; `None` once the connection is closed for good. Cancellation safe.
    pub async fn next(&mut self) -> Option<SystemEvent> {
        loop {
            // In this order: an end is told after the beginning that was told before it.
            let told = tokio::select! {
                biased;
                changed = self.connection.changed() => {
                    changed.ok()?;
                    let up = self.connection.borrow_and_update().up;
                    return Some(if up { SystemEvent::Watching } else { SystemEvent::Blind });
                }
                told = self.connects.next() => self.read(&told?.payload, SystemEvent::Connected),
                told = self.disconnects.next() => self.read(&told?.payload, SystemEvent::Disconnected),
            };
            if told.is_some() {
                return told;
            }
        }
    }

    /// An event of another process of this deployment; `None` for all others, and for what cannot be read.
    ///
    /// Its own coming is left out: the server tells of it before or after the subscriptions are back, as it happens.
    fn read(
        &self,
        payload: &[u8],
        event: fn(WorkerId, ConnectionId) -> SystemEvent,
    ) -> Option<SystemEvent> {
        let (name, connection) = read_advisory(payload)?;
        let told = name.prefix == self.name.prefix && name.worker != self.name.worker;
        told.then(|| event(name.worker, connection))
    }
}

/// Whose connection an advisory is about. Anything that is not a named connection of ours is none.
fn read_advisory(payload: &[u8]) -> Option<(ConnectionName, ConnectionId)> {
    #[derive(Deserialize)]
    struct Advisory {
        server: Server,
        client: ClientInfo,
    }
    #[derive(Deserialize)]
    struct Server {
        id: String,
    }
    #[derive(Deserialize)]
    struct ClientInfo {
        id: u64,
        #[serde(default)]
        name: String,
    }
    let advisory: Advisory = serde_json::from_slice(payload).ok()?;
    let connection = ConnectionId {
        server: advisory.server.id,
        client: advisory.client.id,
    };
    Some((advisory.client.name.parse().ok()?, connection))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_connections_of_ours_are_read() {
        // As nats-server 2.15.1 sends it, shortened.
        let advisory = |name: &str| {
            format!(
                r#"{{"type":"io.nats.server.advisory.v1.client_disconnect","server":{{"name":"fresco","id":"NASF","seq":14}},
                  "client":{{"id":6,"acc":"$G","name":"{name}","kind":"Client"}},"reason":"Client Closed"}}"#
            )
        };
        let (name, connection) = read_advisory(advisory("fresco/denoiser-1").as_bytes()).unwrap();
        assert_eq!(name.to_string(), "fresco/denoiser-1");
        assert_eq!((connection.server.as_str(), connection.client), ("NASF", 6));
        let others = [
            advisory("nats-cli"),
            advisory(""),
            r#"{"server":{"id":"N"},"client":{"id":6}}"#.to_owned(),
            r#"{"server":{"id":"N"},"client":{"id":"6","name":"fresco/a"}}"#.to_owned(),
            r#"{"client":{"id":6,"name":"fresco/a"}}"#.to_owned(),
            "{}".to_owned(),
            "not json".to_owned(),
            String::new(),
        ];
        for other in others {
            assert_eq!(read_advisory(other.as_bytes()), None, "{other}");
        }
    }
}
