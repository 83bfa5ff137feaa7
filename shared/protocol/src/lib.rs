//! The wire contract of Fresco: what travels on the bus, under which subjects, into which streams.
//!
//! This crate is the only place that knows the bytes. It does no I/O and has no runtime, so that both ends of
//! every queue compile against the same types and a byte snapshot (`tests/bytes.rs`) can hold them still.
//!
//! Between roles travel metadata and prior tokens only (2 KB at 1024x1024), never latents, embeddings or raw
//! pixels; the one large message is the encoded picture of a finished output.
//!
//! A published message version never changes: a new shape is a new `VERSION` beside the old one, which is read on where
//! `OLDEST` says so.

#![deny(missing_docs)]

mod codec;
mod dead;
mod error;
mod idempotency;
mod ids;
mod image;
mod job;
mod life;
pub mod limits;
mod presence;
mod prior;
mod progress;
mod result;
mod subject;
mod tenant;
pub mod topology;
pub mod trace;

pub use codec::{DecodeError, EncodeError, Message, decode, encode};
pub use dead::{DeadLetter, DeadMessage, Revival};
pub use error::{ErrorCode, JobError};
pub use idempotency::{IdempotencyKey, IdempotencyKeyError, IdempotencyRecord};
pub use ids::{IdError, JobId, OutputId, OutputIndex, PriorityClass, Seed, TraceId, WorkerId};
pub use image::{DenoiseParameters, ImageFormat, ImageSize, ParameterError};
pub use job::{ArJob, DenoiseJob, JobRecord, OutputRequest, StoredLife};
pub use life::{
    ATTEMPTS_KEPT_MAX, Attempt, AttemptOutcome, Ending, LifeEvent, OutputLife, OutputState,
    Refusal, WorkStage,
};
pub use presence::{CurrentWork, Role, WorkerPresence, WorkerState};
pub use prior::{PriorId, PriorTokens, PriorTokensError, PriorUsage, StoredPrior};
pub use progress::{Progress, Stage};
pub use result::{EncodedImage, OutputResult, OutputTimings};
pub use subject::{Prefix, Subject, SubjectError};
pub use tenant::{Tenant, TenantError};

/// Milliseconds since the Unix epoch, UTC: the one clock reading that crosses processes.
pub type UnixMillis = u64;
