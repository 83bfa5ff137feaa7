//! Whose a job is, in a deployment that tells its clients apart.

use std::{fmt, str::FromStr};

use crate::ids::serde_as_text;

/// A name is read on dashboards, a line each.
const TENANT_CHARS_MAX: usize = 32;

/// A text that cannot name a tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "tenant is `{}`, or not 1 to {TENANT_CHARS_MAX} of a-z, 0-9 and -, without one at its start",
    Tenant::NONE
)]
pub struct TenantError;

/// Who a job is for. An operator's word for a client: a label of metrics, an attribute of traces, part of a key of the
/// broker's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(String);

impl Tenant {
    /// What metrics call the absence of one; no tenant has the name.
    pub const NONE: &'static str = "none";

    /// The header of a message that is for one: who works on it counts whose the work was, and nothing depends on it. A
    /// header and no field, because an older worker passes over it and refuses a field that it does not know: gateways
    /// are upgraded first.
    pub const HEADER: &'static str = "Fresco-Tenant";

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Tenant {
    type Err = TenantError;
    fn from_str(text: &str) -> Result<Self, TenantError> {
        let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let fits = (1..=TENANT_CHARS_MAX).contains(&text.len()) && text.bytes().all(allowed);
        if fits && !text.starts_with('-') && text != Self::NONE {
            Ok(Self(text.to_owned()))
        } else {
            Err(TenantError)
        }
    }
}
serde_as_text!(Tenant);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_a_short_plain_word_that_means_somebody() {
        let longest = "t".repeat(TENANT_CHARS_MAX);
        for good in ["studio", "a", "7", "team-7", &longest] {
            let tenant: Tenant = good.parse().expect(good);
            assert_eq!(tenant.to_string(), good);
        }
        let longer = "t".repeat(TENANT_CHARS_MAX + 1);
        for bad in [
            "", "none", "-a", "Studio", "a_b", "a.b", "a b", "\u{e4}", &longer,
        ] {
            assert_eq!(bad.parse::<Tenant>(), Err(TenantError), "{bad}");
        }
    }
}
