//! `fresco leash`: becomes another program, after asking the kernel for SIGTERM when its parent dies, so that even
//! `kill -9` of `fresco up` leaves no orphan (nats-server included, which knows nothing of us).
//!
//! Why a program between: the request has to be made by the child itself, between fork and exec, where Rust runs
//! only unsafe code. A process that makes it and then execs keeps the request and needs none. A program with file
//! capabilities (`setcap`) loses it (prctl(2)): that one outlives a killed `fresco up` until the next start on the same data folder.

use std::os::unix::process::CommandExt;

use nix::{sys::prctl, sys::signal::Signal, unistd};
use service::exit::Failure;

use crate::args::LeashArgs;

/// Does not return when it succeeds.
pub(crate) fn run(args: &LeashArgs) -> Failure {
    if let Err(errno) = prctl::set_pdeathsig(Signal::SIGTERM) {
        return Failure::Failed(format!(
            "the kernel cannot tell when the parent ends: {errno}"
        ));
    }
    // The parent may have died before the request: then it will never be answered.
    if unistd::getppid().as_raw() != args.parent {
        return Failure::Failed("the parent has ended".to_owned());
    }
    let error = std::process::Command::new(&args.program)
        .args(&args.arguments)
        .exec();
    Failure::Unusable(format!("cannot run {}: {error}", args.program.display()))
}
