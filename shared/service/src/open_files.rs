//! How many files and connections this process may hold at once.

use std::io;

/// Takes as many as the process may have: the soft limit becomes the hard one. Says how many that are.
///
/// Shells, and engines of containers since containerd 2, start a process with 1,024, for the sake of programs that call `select`.
/// A gateway has one for each client that waits, and without any left it could not even answer a probe.
#[expect(
    unsafe_code,
    reason = "nix has a safe twin behind a feature that nobody else needs"
)]
pub(crate) fn take_all() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer is that of a whole `rlimit` which lives past the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: as above, and it is only read.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}
