//! The `fresco` program; everything is in the library.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    service::exit::report("fresco", fresco::run(fresco::args::Cli::parse()))
}
