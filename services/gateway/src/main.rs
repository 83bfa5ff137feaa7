//! The `fresco-gateway` process: flags, telemetry, `gateway::run`.

use std::process::ExitCode;

use clap::Parser;
use gateway::Config;
use service::{
    Shutdown,
    exit::{self, Failure},
    telemetry,
};

fn main() -> ExitCode {
    exit::report("fresco-gateway", run(Config::parse()))
}

fn run(config: Config) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::failed(&error))?;
    runtime.block_on(async {
        let telemetry = telemetry::init("fresco-gateway", &config.shell)?;
        let shutdown = Shutdown::on_signals().map_err(|error| Failure::failed(&error))?;
        let outcome = gateway::run(config, shutdown).await;
        drop(telemetry);
        outcome.map_err(|error| Failure::failed(error.as_ref()))
    })
}
