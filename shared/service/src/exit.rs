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
pub fn report(role: &str, outcome: Result<(), Failure>) -> ExitCode {
    ExitCode::from(told(role, outcome))
}

/// The end of `main` of a role with a device: as [`report`], but without the destructors of C++ statics.
///
/// A call may still be running on the device thread, for longer than any grace period. libtorch's destructors would
/// pull its kernels and threads away from under it: a stopped worker died of SIGSEGV in one run of four.
#[expect(
    unsafe_code,
    reason = "libc::_exit has no safe twin; nothing of ours is left to be destroyed"
)]
pub fn report_beside_device(role: &str, outcome: Result<(), Failure>) -> ! {
    let code = told(role, outcome);
    // SAFETY: ends the process; there are no preconditions.
    unsafe { libc::_exit(i32::from(code)) }
}

#[expect(
    clippy::print_stderr,
    reason = "the last word of a process, when logging may not have started or has ended"
)]
fn told(role: &str, outcome: Result<(), Failure>) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(failure) => {
            eprintln!("{role}: {failure}");
            failure.code()
        }
    }
}
