//! How many files and connections this process may hold at once.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Takes as many as the process may have: the soft limit becomes the hard one. Says how many that are.
///
/// Shells, and engines of containers since containerd 2, start a process with 1,024, for the sake of programs that call `select`.
/// A gateway has one for each client that waits, and without any left it could not even answer a probe.
pub(crate) fn take_all() -> nix::Result<u64> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(hard)
}
