//! Which server of the broker a process talks to, for its spans.

use std::sync::{Arc, Mutex, PoisonError};

use async_nats::{Client, ServerAddr};

use crate::connection::Connection;

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) host: Arc<str>,
    pub(crate) port: u16,
}

/// What spans are told of the broker: asked once a connection, since the client makes a copy of all that its server says
/// for whoever asks.
#[derive(Debug)]
pub(crate) struct Servers {
    /// As configured, without credentials.
    configured: Vec<Server>,
    /// With the epoch of the connection that it is of.
    last: Mutex<Option<(u64, Server)>>,
}

impl Servers {
    pub(crate) fn new(addresses: &[String]) -> Self {
        let parsed = addresses.iter().filter_map(|address| address.parse().ok());
        let configured = parsed.map(|address: ServerAddr| Server {
            host: address.host().into(),
            port: address.port(),
        });
        Self {
            configured: configured.collect(),
            last: Mutex::new(None),
        }
    }

    /// Of this connection; `None` before the first one.
    pub(crate) fn of(&self, now: Connection, client: &Client) -> Option<Server> {
        // Locked for a comparison and a copy.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((epoch, server)) if *epoch == now.epoch => Some(server.clone()),
            _ => {
                let told = client.try_server_info()?;
                let server = chosen(&self.configured, &told.host, told.port)?;
                *last = Some((now.epoch, server.clone()));
                Some(server)
            }
        }
    }
}

/// What a server calls itself, where that is an address to others. A server that listens everywhere says so instead: then
/// it is the configured one with its port, or the only one that there is.
fn chosen(configured: &[Server], host: &str, port: u16) -> Option<Server> {
    let is_somewhere = match host.parse::<std::net::IpAddr>() {
        Ok(address) => !address.is_unspecified(),
        Err(_) => !host.is_empty(),
    };
    if is_somewhere {
        let host = host.into();
        return Some(Server { host, port });
    }
    let same_port = configured.iter().find(|server| server.port == port);
    same_port.or(configured.first()).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_where_others_find_it() {
        let configured = ["nats://a:4222", "tls://b:4223", "[::1]"].map(str::to_owned);
        let configured = Servers::new(&configured).configured;
        let table = [
            (("10.0.0.5", 4222), ("10.0.0.5", 4222)),
            (("n1.example", 9), ("n1.example", 9)),
            (("0.0.0.0", 4223), ("b", 4223)),
            (("::", 4222), ("a", 4222)),
            // Behind a proxy.
            (("0.0.0.0", 1), ("a", 4222)),
            (("", 0), ("a", 4222)),
        ];
        for ((host, port), (wanted, wanted_port)) in table {
            let server = chosen(&configured, host, port).expect("one is configured");
            assert_eq!(
                (&*server.host, server.port),
                (wanted, wanted_port),
                "{host}:{port}"
            );
        }
        assert_eq!((&*configured[2].host, configured[2].port), ("::1", 4222));
        assert_eq!(chosen(&[], "0.0.0.0", 4222), None);
    }
}
