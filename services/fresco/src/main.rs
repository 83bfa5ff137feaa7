//! The `fresco` program; everything is in the library.

use std::process::ExitCode;

use clap::Parser;
use fresco::args::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse().checked().unwrap_or_else(|error| error.exit());
    service::exit::report("fresco", fresco::run(cli))
}
