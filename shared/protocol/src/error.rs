//! How a job can fail, as a closed list: HTTP status and acknowledgement both follow from the code.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits::ERROR_TEXT_CHARS_MAX;

/// Why an output or a request has no picture. Closed: a new reason is a new code here, with its HTTP status in
/// the gateway's `reply.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// A parameter is outside what the API or the model allows.
    InvalidParameter,
    /// A parameter the API does not have.
    UnknownParameter,
    /// The body is not the JSON it should be.
    InvalidJson,
    /// The body is larger than the limit.
    BodyTooLarge,
    /// The body did not arrive in time.
    RequestTimeout,
    /// The content type is not the one the route reads.
    UnsupportedMediaType,
    /// The path exists under another method.
    MethodNotAllowed,
    /// The request brings no API key of a tenant's.
    InvalidApiKey,
    /// No such route, job or image.
    NotFound,
    /// The queue is full.
    QueueFull,
    /// No worker of some role is ready, or the streams are missing.
    NotReady,
    /// The message broker cannot be reached.
    BusUnavailable,
    /// A message could not be read by its consumer.
    MessageInvalid,
    /// The AR engine failed.
    ArFailed,
    /// The AR engine returned too few tokens or ids outside the codebook.
    PriorTokensInvalid,
    /// Glyph encoding, denoising or decoding failed.
    DenoiseFailed,
    /// The encoded picture is larger than a message may be.
    ImageTooLarge,
    /// The job did not finish in its time.
    DeadlineExceeded,
    /// A client or operator ended it.
    Cancelled,
    /// It failed, or took its workers down, as often as it may: it lies among the dead letters.
    AttemptsExhausted,
    /// The idempotency key belongs to another request.
    IdempotencyKeyReused,
    /// A defect of ours.
    Internal,
}

impl ErrorCode {
    /// Every code; for tables and tests.
    pub const ALL: [Self; 22] = [
        Self::InvalidParameter,
        Self::UnknownParameter,
        Self::InvalidJson,
        Self::BodyTooLarge,
        Self::RequestTimeout,
        Self::UnsupportedMediaType,
        Self::MethodNotAllowed,
        Self::InvalidApiKey,
        Self::NotFound,
        Self::QueueFull,
        Self::NotReady,
        Self::BusUnavailable,
        Self::MessageInvalid,
        Self::ArFailed,
        Self::PriorTokensInvalid,
        Self::DenoiseFailed,
        Self::ImageTooLarge,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::AttemptsExhausted,
        Self::IdempotencyKeyReused,
        Self::Internal,
    ];

    /// The code as the wire, the API and the logs write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidParameter => "invalid_parameter",
            Self::UnknownParameter => "unknown_parameter",
            Self::InvalidJson => "invalid_json",
            Self::BodyTooLarge => "body_too_large",
            Self::RequestTimeout => "request_timeout",
            Self::UnsupportedMediaType => "unsupported_media_type",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::InvalidApiKey => "invalid_api_key",
            Self::NotFound => "not_found",
            Self::QueueFull => "queue_full",
            Self::NotReady => "not_ready",
            Self::BusUnavailable => "bus_unavailable",
            Self::MessageInvalid => "message_invalid",
            Self::ArFailed => "ar_failed",
            Self::PriorTokensInvalid => "prior_tokens_invalid",
            Self::DenoiseFailed => "denoise_failed",
            Self::ImageTooLarge => "image_too_large",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::Cancelled => "cancelled",
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::IdempotencyKeyReused => "idempotency_key_reused",
            Self::Internal => "internal",
        }
    }

    /// Whether what was asked for is at fault, or that it was asked for now: no failure of the deployment. These are the
    /// codes of HTTP's 4xx, but for a job that was cancelled.
    pub const fn is_refusal(self) -> bool {
        match self {
            Self::InvalidParameter
            | Self::UnknownParameter
            | Self::InvalidJson
            | Self::BodyTooLarge
            | Self::RequestTimeout
            | Self::UnsupportedMediaType
            | Self::MethodNotAllowed
            | Self::InvalidApiKey
            | Self::NotFound
            | Self::QueueFull
            | Self::IdempotencyKeyReused => true,
            Self::NotReady
            | Self::BusUnavailable
            | Self::MessageInvalid
            | Self::ArFailed
            | Self::PriorTokensInvalid
            | Self::DenoiseFailed
            | Self::ImageTooLarge
            | Self::DeadlineExceeded
            | Self::Cancelled
            | Self::AttemptsExhausted
            | Self::Internal => false,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A failed output: the code for programs, the text for people. The text never quotes a prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobError {
    /// What kind of failure.
    pub code: ErrorCode,
    /// One sentence, at most [`ERROR_TEXT_CHARS_MAX`] characters.
    pub text: String,
}

impl JobError {
    /// Cuts `text` at [`ERROR_TEXT_CHARS_MAX`] and at its first line break: libtorch's texts carry stack traces.
    pub fn new(code: ErrorCode, text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        Self {
            code,
            text: line.chars().take(ERROR_TEXT_CHARS_MAX).collect(),
        }
    }
}

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.text)
    }
}

impl std::error::Error for JobError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_and_the_api_write_a_code_alike() {
        for code in ErrorCode::ALL {
            let bytes = rmp_serde::to_vec_named(&code).expect("a code encodes");
            let text: String = rmp_serde::from_slice(&bytes).expect("a code is a text");
            assert_eq!(text, code.as_str());
        }
    }

    #[test]
    fn an_error_text_is_one_short_line() {
        let error = JobError::new(
            ErrorCode::DenoiseFailed,
            &format!("{}\nframe #0", "x".repeat(600)),
        );
        assert_eq!(error.text, "x".repeat(ERROR_TEXT_CHARS_MAX));
    }
}
