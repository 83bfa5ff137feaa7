//! Under which address clients reach this gateway: the start of every picture's `url`. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use service::address::PublicUrl;
use warp::host::Authority;

/// What the start of an address is made from.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) public: Option<PublicUrl>,
    pub(crate) bound: SocketAddr,
}

impl Address {
    /// For the answer to a request that was sent to `host`.
    pub(crate) fn base(&self, host: Option<&Authority>) -> String {
        match (&self.public, host) {
            (Some(url), _) => url.to_string(),
            (None, Some(host)) => {
                let name = host.host();
                let bare = name.trim_start_matches('[').trim_end_matches(']');
                let name = match bare.parse::<IpAddr>() {
                    Ok(ip) => in_url(reachable(ip)),
                    Err(_) => name.to_owned(),
                };
                let port = host
                    .port_u16()
                    .map(|port| format!(":{port}"))
                    .unwrap_or_default();
                format!("http://{name}{port}")
            }
            (None, None) => format!(
                "http://{}",
                SocketAddr::new(reachable(self.bound.ip()), self.bound.port())
            ),
        }
    }
}

/// A wildcard is where one listens, nowhere one can send to: who got an answer through it is on this machine.
fn reachable(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

fn in_url(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_what_the_client_called_and_never_a_wildcard() {
        let cases = [
            (Some("images.example.com"), "http://images.example.com"),
            (
                Some("images.example.com:81"),
                "http://images.example.com:81",
            ),
            (Some("user:secret@h:1"), "http://h:1"),
            (Some("0.0.0.0:8080"), "http://127.0.0.1:8080"),
            (Some("[::]:8080"), "http://[::1]:8080"),
            (Some("[fe80::1]"), "http://[fe80::1]"),
            (None, "http://127.0.0.1:9"),
        ];
        let address = Address {
            public: None,
            bound: "0.0.0.0:9".parse().expect("an address"),
        };
        for (host, wanted) in cases {
            let host: Option<Authority> = host.map(|host| host.parse().expect("an authority"));
            assert_eq!(address.base(host.as_ref()), wanted);
        }
    }

    #[test]
    fn the_operators_address_wins() {
        let public = Some("https://example.com/fresco/".parse().expect("a url"));
        let address = Address {
            public,
            bound: "0.0.0.0:9".parse().expect("an address"),
        };
        assert_eq!(
            address.base(Some(&"other".parse().expect("an authority"))),
            "https://example.com/fresco"
        );
    }
}
