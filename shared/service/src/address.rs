//! Addresses that others are told. Pure.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
};

use reqwest::Url;

/// An address that nobody can call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// One listens on it, on every address there is; one calls none of them by it.
    #[error("{0} is a wildcard: one can listen on it, nobody can call it")]
    Wildcard(IpAddr),
    /// What is bound would be told.
    #[error(
        "--health-listen {0} is a wildcard that would be told to others: give --advertise with the address they call"
    )]
    NothingToTell(SocketAddr),
    /// Whoever calls what is told calls another interface than the one that is bound.
    #[error(
        "--advertise {told} (or FRESCO_ADVERTISE) tells others where nobody listens: --health-listen is {bound}"
    )]
    NobodyListens {
        /// What is bound.
        bound: SocketAddr,
        /// What others would be told.
        told: IpAddr,
    },
}

/// A flag's address that others can call.
///
/// # Errors
///
/// For a wildcard.
pub fn callable(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text.parse().map_err(|_| "not an IP address".to_owned())?;
    if ip.to_canonical().is_unspecified() {
        return Err(AddressError::Wildcard(ip).to_string());
    }
    Ok(ip)
}

/// The start of the addresses that clients are told: scheme, authority and maybe a path, without a slash at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicUrl(String);

const NO_PUBLIC_URL: &str = "not http://HOST or https://HOST, with a port and a path at most";

impl FromStr for PublicUrl {
    type Err = String;
    /// As clients read it, who take `http://0` for 0.0.0.0 and leave `#...` out.
    fn from_str(text: &str) -> Result<Self, String> {
        let url: Url = text.parse().map_err(|_| NO_PUBLIC_URL.to_owned())?;
        let host = url.host_str().unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let named = |host: &str| {
            host.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
        };
        match bare.parse::<IpAddr>() {
            Ok(ip) if ip.to_canonical().is_unspecified() => {
                Err(AddressError::Wildcard(ip).to_string())
            }
            Ok(_) if is_plain(&url) => Ok(Self(kept(&url))),
            Err(_) if is_plain(&url) && named(host) => Ok(Self(kept(&url))),
            Ok(_) | Err(_) => Err(NO_PUBLIC_URL.to_owned()),
        }
    }
}

/// Whether this is nothing but a scheme of the web, a host, a port that one can call and a path.
fn is_plain(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https")
        && url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none()
        && url.port() != Some(0)
}

fn kept(url: &Url) -> String {
    url.as_str().trim_end_matches('/').to_owned()
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What others are told of a socket that is bound to `bound`.
///
/// # Errors
///
/// Where that would be a wildcard, or one of both is a loopback address and the other is not.
pub fn advertised(
    bound: SocketAddr,
    advertise: Option<IpAddr>,
) -> Result<SocketAddr, AddressError> {
    match advertise {
        Some(told) if !may_lead(told, bound.ip()) => {
            Err(AddressError::NobodyListens { bound, told })
        }
        Some(told) => Ok(SocketAddr::new(told, bound.port())),
        None if bound.ip().is_unspecified() => Err(AddressError::NothingToTell(bound)),
        None => Ok(bound),
    }
}

/// Whether a call of `told` may come to `bound`. Other addresses than the own one may, by who translates them; a loopback
/// address leads to itself.
fn may_lead(told: IpAddr, bound: IpAddr) -> bool {
    let [told, bound] = [told, bound].map(|ip| ip.to_canonical());
    bound.is_unspecified() || told.is_loopback() == bound.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_leads_to_what_is_bound() {
        let table = [
            ("127.0.0.1", "10.0.0.5", false),
            ("[::1]", "fd00::1", false),
            ("[::ffff:127.0.0.1]", "10.0.0.5", false),
            ("10.0.0.5", "127.0.0.1", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("127.0.0.1", "127.0.0.2", true),
            // Behind a translation of addresses.
            ("10.0.0.5", "203.0.113.7", true),
            ("0.0.0.0", "10.0.0.5", true),
            ("[::]", "127.0.0.1", true),
        ];
        for (bound, told, leads) in table {
            let bound: SocketAddr = format!("{bound}:9100").parse().expect("an address");
            let told: IpAddr = told.parse().expect("an address");
            let wanted = match leads {
                true => Ok(SocketAddr::new(told, 9100)),
                false => Err(AddressError::NobodyListens { bound, told }),
            };
            assert_eq!(advertised(bound, Some(told)), wanted, "{bound} {told}");
        }
    }

    #[test]
    fn a_wildcard_is_never_told_and_refused_by_its_name() {
        assert!(callable("::ffff:0.0.0.0").is_err());
        for wildcard in ["0.0.0.0", "::"] {
            let refused = callable(wildcard);
            assert!(
                refused.is_err_and(|text| text.starts_with(wildcard)),
                "{wildcard}"
            );
            let bound = SocketAddr::new(wildcard.parse().expect("an address"), 9100);
            let error = advertised(bound, None);
            assert_eq!(error, Err(AddressError::NothingToTell(bound)));
            let told = advertised(bound, Some([10, 0, 0, 5].into()));
            assert_eq!(told, Ok(SocketAddr::from(([10, 0, 0, 5], 9100))));
        }
        let bound = SocketAddr::from(([127, 0, 0, 1], 9100));
        assert_eq!(advertised(bound, None), Ok(bound));
        assert!(callable("host").is_err());
    }

    #[test]
    fn what_clients_are_told_is_an_address_that_they_can_call() {
        for (good, told) in [
            ("https://example.com/fresco/", "https://example.com/fresco"),
            ("http://node-7_a:8080", "http://node-7_a:8080"),
            ("http://10.0.0.5", "http://10.0.0.5"),
            ("http://[fd00::1]:8080/", "http://[fd00::1]:8080"),
        ] {
            let url: PublicUrl = good.parse().expect(good);
            assert_eq!(url.to_string(), told);
        }
        for bad in [
            "",
            "example.com",
            "ftp://example.com",
            "https://example.com/?a=b",
            "https://user:secret@example.com",
            "/path",
            "http://0.0.0.0:8080",
            "https://[::]/images",
            "https://[::ffff:0.0.0.0]",
            "http://0:8080",
            "http://0x0/",
            "http://0.0",
            "http://*:8080",
            "http://:8080",
            "http://host:0",
            "http://host:99999",
            "http://host#images",
            "http://host%20name",
            "http://host/?",
        ] {
            assert!(bad.parse::<PublicUrl>().is_err(), "{bad}");
        }
    }
}
