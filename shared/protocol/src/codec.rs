//! Bytes of a message: a MessagePack map by field name, `{kind, version, body}`.
//!
//! Field names cost some tens of bytes beside a 2 KB grid, and buy a wire that a person, a Python script and an
//! older binary can all read. The kind and version stand in the bytes rather than in a header, so that a message
//! copied out of a stream still says what it is.

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// A type that goes onto the bus.
pub trait Message: Serialize + DeserializeOwned {
    /// What it is.
    const KIND: &'static str;
    /// Which shape of it; a changed shape is a new version, never a changed old one.
    const VERSION: u16;
    /// The oldest shape that is read too: what later ones have more is optional in them.
    const OLDEST: u16 = Self::VERSION;
}

/// A message that could not be written. It would be a defect of ours.
#[derive(Debug, thiserror::Error)]
#[error("message {kind} cannot be encoded")]
pub struct EncodeError {
    kind: &'static str,
    #[source]
    source: rmp_serde::encode::Error,
}

/// Bytes that are not the message they should be.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// Not MessagePack, or not our envelope, or a body that breaks its type's rules.
    #[error("bytes are not a {kind} message")]
    Bytes {
        /// The kind that was wanted.
        kind: &'static str,
        /// What the reader found.
        #[source]
        source: rmp_serde::decode::Error,
    },
    /// A message of another kind.
    #[error("message is a {found}, not a {kind}")]
    Kind {
        /// The kind that was wanted.
        kind: &'static str,
        /// The kind that came.
        found: String,
    },
    /// A version this build does not read.
    #[error("version {found} of {kind} is not the version {version} this build reads")]
    Version {
        /// The kind that was wanted.
        kind: &'static str,
        /// The version this build reads.
        version: u16,
        /// The version that came.
        found: u16,
    },
}

#[derive(Serialize)]
struct Envelope<'a, T> {
    kind: &'a str,
    version: u16,
    body: &'a T,
}

/// Read first, so that another version is refused as such and not as broken bytes.
#[derive(Deserialize)]
struct Head {
    kind: String,
    version: u16,
}

#[derive(Deserialize)]
struct Body<T> {
    body: T,
}

/// The bytes of `message`.
pub fn encode<T: Message>(message: &T) -> Result<Vec<u8>, EncodeError> {
    let envelope = Envelope {
        kind: T::KIND,
        version: T::VERSION,
        body: message,
    };
    let mut bytes = Vec::new();
    // Human-readable: types with two forms (addresses) use their text, like all ids do.
    let mut serializer = rmp_serde::Serializer::new(&mut bytes)
        .with_struct_map()
        .with_human_readable();
    envelope
        .serialize(&mut serializer)
        .map_err(|source| EncodeError {
            kind: T::KIND,
            source,
        })?;
    Ok(bytes)
}

fn read<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, rmp_serde::decode::Error> {
    let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes).with_human_readable();
    T::deserialize(&mut deserializer)
}

/// The message in `bytes`.
pub fn decode<T: Message>(bytes: &[u8]) -> Result<T, DecodeError> {
    let broken = |source| DecodeError::Bytes {
        kind: T::KIND,
        source,
    };
    let head: Head = read(bytes).map_err(broken)?;
    if head.kind != T::KIND {
        return Err(DecodeError::Kind {
            kind: T::KIND,
            found: head.kind,
        });
    }
    if !(T::OLDEST..=T::VERSION).contains(&head.version) {
        return Err(DecodeError::Version {
            kind: T::KIND,
            version: T::VERSION,
            found: head.version,
        });
    }
    let Body { body } = read(bytes).map_err(broken)?;
    Ok(body)
}
