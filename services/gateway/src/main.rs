//! The `fresco-gateway` process: flags and `gateway::run`.

use std::process::ExitCode;

use clap::Parser;
use gateway::Config;
use service::{
    exit::{self, Failure},
    process::{self, Threads},
};

const ROLE: &str = "fresco-gateway";

fn main() -> ExitCode {
    exit::report(ROLE, run(Config::parse()))
}

fn run(config: Config) -> Result<(), Failure> {
    let shell = config.shell.clone();
    process::run(ROLE, Threads::PerCore, &shell, async |shutdown| {
        let outcome = gateway::run(config, shutdown).await;
        outcome.map_err(|error| Failure::failed(error.as_ref()))
    })
}
