//! A client's own name for a request, so that asking twice is asking once.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{JobRecord, Message, Tenant, limits::IDEMPOTENCY_KEY_BYTES_MAX};

/// A text that cannot be a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("idempotency key is not 1 to {IDEMPOTENCY_KEY_BYTES_MAX} visible ASCII characters")]
pub struct IdempotencyKeyError;

/// What the client sent as `Idempotency-Key`. It may tell something about the client: it is not logged.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct IdempotencyKey {
    text: String,
    tenant: Option<Tenant>,
}

impl IdempotencyKey {
    /// The same text in the hands of `tenant`, which is another key than in anybody else's.
    #[must_use]
    pub fn of(self, tenant: Option<&Tenant>) -> Self {
        Self {
            tenant: tenant.cloned(),
            ..self
        }
    }

    /// Its entry in the bucket: hexadecimal, because a bucket's keys know fewer characters; behind a `_`, which is in no
    /// tenant's name, whose it is.
    pub fn entry(&self) -> String {
        let hex = self.text.bytes().map(|byte| format!("{byte:02x}"));
        match &self.tenant {
            None => hex.collect(),
            Some(tenant) => format!("{tenant}_{}", hex.collect::<String>()),
        }
    }
}

impl FromStr for IdempotencyKey {
    type Err = IdempotencyKeyError;
    fn from_str(text: &str) -> Result<Self, IdempotencyKeyError> {
        let allowed = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
        if text.is_empty() || text.len() > IDEMPOTENCY_KEY_BYTES_MAX || !text.bytes().all(allowed) {
            return Err(IdempotencyKeyError);
        }
        Ok(Self {
            text: text.to_owned(),
            tenant: None,
        })
    }
}

/// Prints the length, never the text.
impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IdempotencyKey({} bytes)", self.text.len())
    }
}

/// What a key stands for. Written before anything else of its job, so that whoever asks again can also finish what
/// a gateway that died in between has begun.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IdempotencyRecord {
    /// Of the request, to tell another one under the same key.
    pub request_digest: String,
    /// The job, seeds included: whoever queues it queues the same.
    pub record: JobRecord,
}

impl Message for IdempotencyRecord {
    const KIND: &'static str = "idempotency_record";
    /// With the record's.
    const VERSION: u16 = 2;
    const OLDEST: u16 = 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_visible_and_not_too_long() {
        for text in ["", "a\nb", "ä", &"x".repeat(256)] {
            assert!(text.parse::<IdempotencyKey>().is_err(), "{text:?}");
        }
        let key: IdempotencyKey = "a/b c".parse().expect("allowed");
        assert_eq!(key.entry(), "612f622063");
        let of = |tenant: &str| key.clone().of(Some(&tenant.parse().expect("a name")));
        assert_eq!(of("studio").entry(), "studio_612f622063");
        assert_ne!(of("studio"), of("press"));
        assert_eq!(format!("{key:?}"), "IdempotencyKey(5 bytes)");
        assert!("x".repeat(255).parse::<IdempotencyKey>().is_ok());
    }
}
