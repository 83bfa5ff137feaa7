//! Addresses that others are told. Pure.

use std::net::{IpAddr, SocketAddr};

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
}

/// A flag's address that others can call.
///
/// # Errors
///
/// For a wildcard.
pub fn callable(text: &str) -> Result<IpAddr, String> {
    let ip: IpAddr = text.parse().map_err(|_| "not an IP address".to_owned())?;
    if ip.is_unspecified() {
        return Err(AddressError::Wildcard(ip).to_string());
    }
    Ok(ip)
}

/// What others are told of a socket that is bound to `bound`.
///
/// # Errors
///
/// Where that would be a wildcard.
pub fn advertised(
    bound: SocketAddr,
    advertise: Option<IpAddr>,
) -> Result<SocketAddr, AddressError> {
    match advertise {
        Some(ip) => Ok(SocketAddr::new(ip, bound.port())),
        None if bound.ip().is_unspecified() => Err(AddressError::NothingToTell(bound)),
        None => Ok(bound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_is_never_told_and_refused_by_its_name() {
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
}
