//! The `fresco-gateway` process: flags and `gateway::run`.

use std::process::ExitCode;

use gateway::Config;
use protocol::Role;
use service::{
    exit::{self, Failure},
    process::{self, Process, Threads},
    reference,
};

const PROGRAM: &str = "fresco-gateway";

fn main() -> ExitCode {
    exit::report(PROGRAM, run(reference::parse::<Config>()))
}

fn run(config: Config) -> Result<(), Failure> {
    let (bus, shell) = (config.bus.clone(), config.shell.clone());
    let process = Process {
        program: PROGRAM,
        role: Role::Gateway,
        threads: Threads::PerCore,
        bus: &bus,
        shell: &shell,
    };
    process::run(&process, async |shutdown, name, metrics| {
        let outcome = gateway::run(config, name, metrics, shutdown).await;
        outcome.map_err(|error| match error.downcast() {
            Ok(failure) => failure,
            Err(error) => Failure::failed(error.as_ref()),
        })
    })
}
