//! The `fresco` program; everything is in the library.

use std::process::ExitCode;

use fresco::args::Cli;

fn main() -> ExitCode {
    let cli = service::reference::parse::<Cli>().checked();
    let cli = cli.unwrap_or_else(|error| error.exit());
    service::exit::report("fresco", fresco::run(cli))
}
