//! What a process's end says to whoever supervises it.

use std::process::ExitCode;

/// Failed while running: starting again may help.
pub const FAILED: u8 = 1;

/// Bad arguments, or a model that cannot be used: starting again cannot help.
pub const UNUSABLE: u8 = 2;

/// Why a process ends early, with the exit code that follows from it.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Bad arguments, or a model that cannot be used.
    #[error("{0}")]
    Unusable(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl Failure {
    /// From an error and the chain of its sources, in one line.
    pub fn unusable(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Unusable(chain(error))
    }

    /// From an error and the chain of its sources, in one line.
    pub fn failed(error: &(dyn std::error::Error + 'static)) -> Self {
        Self::Failed(chain(error))
    }

    /// The exit code of the process.
    pub const fn code(&self) -> u8 {
        match self {
            Self::Unusable(_) => UNUSABLE,
            Self::Failed(_) => FAILED,
        }
    }
}

/// An error and its sources, in one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        line.push_str(": ");
        line.push_str(&error.to_string());
        source = error.source();
    }
    line.replace('\n', " ")
}

/// The end of `main`: one line on stderr when it failed, and the code.
#[expect(
    clippy::print_stderr,
    reason = "the last word of a process, when logging may not have started or has ended"
)]
pub fn report(role: &str, outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{role}: {failure}");
            ExitCode::from(failure.code())
        }
    }
}
