//! What the replay engines share: a fleet without a model, for failures, timing and admission.
//!
//! Durations come from a table ([`Times`], and [`Flight`] for rows that run together), prior tokens and pictures are
//! functions of the request alone ([`prior_tokens`], [`picture()`]), and failures are scripted in a file that is read at
//! every job ([`Faults`]). So whoever watches a fleet can say what each output must be, byte for byte. Nothing here
//! sleeps or knows a queue; [`Fault::enact`] alone acts.
//!
//! The pictures say nothing about a model: only that the right worker was given the right job.

#![deny(missing_docs)]

mod faults;
mod flight;
mod picture;
mod splitmix;
mod times;
mod tokens;

use std::path::PathBuf;

pub use faults::{Fault, FaultStage, Faults, Rule, Rules};
pub use flight::Flight;
pub use picture::{PictureError, Scene, picture};
pub use times::{ArTimes, DenoiseTimes, Table, Times};
pub use tokens::{CODEBOOK_SIZE, generated_tokens, prior_tokens};

/// Why a file of the replay engines cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error("cannot read {}", file.display())]
    Io {
        /// Which file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not the JSON it should be.
    #[error("{}: not the JSON of the replay engines", file.display())]
    Json {
        /// Which file.
        file: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A number in it is none that it can be.
    #[error("{what} is {found}, need {need}")]
    OutOfRange {
        /// Which number.
        what: &'static str,
        /// What it is.
        found: f64,
        /// What it may be.
        need: &'static str,
    },
}
