//! `fresco`, the operator's command: runs a deployment, asks it for pictures, looks after its broker, measures
//! and plans. It talks to a
//! gateway over HTTP and to the broker through `messaging`; it knows no tensor and never links libtorch.

pub mod args;
mod bench;
mod cancel;
mod dead;
mod generate;
mod leash;
mod nats;
mod plan;
mod profile;
mod secret;
mod table;
mod terminal;
pub mod up;
pub mod watch;
mod workers;

use std::time::Duration;

use service::{
    ShellArgs, TraceArgs,
    exit::Failure,
    telemetry::{self, Identity},
};

use crate::args::{Cli, Command, FleetCommand};

/// Carries out the command line.
pub fn run(cli: Cli) -> Result<(), Failure> {
    if let Command::Leash(args) = &cli.command {
        return Err(leash::run(args));
    }
    let shell = ShellArgs {
        health_listen: ([127, 0, 0, 1], 0).into(),
        advertise: None,
        admin_key: None,
        log_filter: cli.log_filter(),
        log_format: cli.log_format,
        grace: Duration::ZERO,
        tokio_console: None,
        traces: TraceArgs::default(),
    };
    let identity = Identity {
        service: "fresco",
        deployment: String::new(),
        instance: String::new(),
    };
    let _telemetry = telemetry::init(&identity, &shell)?;
    // One thread: children end with the thread that started them (`leash`).
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| Failure::failed(&error))?;
    runtime.block_on(async {
        match cli.command {
            Command::Up(args) => Box::pin(up::run(*args)).await,
            Command::Generate(args) => Box::pin(generate::run(args)).await,
            Command::Cancel(args) => Box::pin(cancel::run(args)).await,
            Command::Workers(args) => Box::pin(workers::run(args)).await,
            Command::Profile(args) => Box::pin(profile::run(args)).await,
            Command::Dead(command) => Box::pin(dead::run(command)).await,
            Command::Watch(args) => Box::pin(watch::run(args)).await,
            Command::Nats(command) => Box::pin(nats::run(command)).await,
            Command::Fleet(FleetCommand::Systemd(args)) => up::systemd::run(&args),
            Command::Bench(command) => Box::pin(bench::run(command)).await,
            Command::Plan(args) => plan::run(&args),
            Command::Leash(args) => Err(leash::run(&args)),
        }
    })
}
