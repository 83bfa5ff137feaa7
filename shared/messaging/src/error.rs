//! What can go wrong on the bus. The kind decides what a caller does; texts are for people.

use std::path::PathBuf;

use protocol::{DecodeError, EncodeError, ErrorCode};

/// The client library's errors, as the source of ours.
pub(crate) type Source = Box<dyn std::error::Error + Send + Sync>;

/// Something could not be read from the broker or set up on it.
#[derive(Debug, thiserror::Error)]
pub enum BusError {
    /// No connection could be set up: wrong address or credentials.
    #[error("cannot connect to the message broker")]
    Connect(#[source] Source),
    /// A file of credentials or certificates cannot be used.
    #[error("cannot use {}", file.display())]
    Access {
        /// Which.
        file: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The broker did not answer, or has no leader for what was asked. Worth a retry.
    #[error("message broker does not answer for {what}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// What the client saw.
        #[source]
        source: Source,
    },
    /// The broker answered with an error.
    #[error("message broker refuses {what} with code {code}: {text}")]
    Refused {
        /// What was asked for.
        what: String,
        /// JetStream's error code.
        code: u64,
        /// The broker's text.
        text: String,
    },
    /// A stream or consumer is not there; see `Bus::provision`.
    #[error("{what} is missing on the message broker")]
    Missing {
        /// What was asked for.
        what: String,
    },
    /// A stored message is not what it should be.
    #[error("stored {what} cannot be read")]
    Decode {
        /// What was read.
        what: String,
        /// Why not.
        #[source]
        source: DecodeError,
    },
}

impl BusError {
    /// The error code a client of ours gets for it.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Connect(_) | Self::Access { .. } | Self::Unavailable { .. } => {
                ErrorCode::BusUnavailable
            }
            Self::Refused { .. } | Self::Missing { .. } => ErrorCode::NotReady,
            Self::Decode { .. } => ErrorCode::MessageInvalid,
        }
    }
}

/// A message is not, or not surely, stored.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The stream is at its limit of messages or bytes.
    #[error("stream of {subject} is full")]
    Full {
        /// Where it was published.
        subject: String,
    },
    /// The message is larger than the broker takes.
    #[error("message of {bytes} bytes is larger than the {bytes_max} the broker takes")]
    TooLarge {
        /// Of the message.
        bytes: usize,
        /// What the broker takes.
        bytes_max: usize,
    },
    /// The broker did not confirm the message in time. It may be stored all the same.
    #[error("message broker did not confirm {subject}")]
    Unavailable {
        /// Where it was published.
        subject: String,
        /// The last try's failure.
        #[source]
        source: Source,
    },
    /// The message has no bytes: a defect of ours.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

impl PublishError {
    /// Whether another try is bound to fail alike: the stream is full, or the message can never be stored.
    pub const fn is_final(&self) -> bool {
        match self {
            Self::Full { .. } | Self::TooLarge { .. } | Self::Encode(_) => true,
            Self::Unavailable { .. } => false,
        }
    }

    /// The error code a client of ours gets for it.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Full { .. } => ErrorCode::QueueFull,
            Self::TooLarge { .. } => ErrorCode::ImageTooLarge,
            Self::Unavailable { .. } => ErrorCode::BusUnavailable,
            Self::Encode(_) => ErrorCode::Internal,
        }
    }
}
