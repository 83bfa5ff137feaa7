//! `fresco-denoiser`: arguments, telemetry, run, shutdown.

use clap::Parser;
use denoiser::Args;
use service::{Shutdown, exit, exit::Failure, telemetry};

const ROLE: &str = "fresco-denoiser";

fn main() -> ! {
    let args = Args::parse();
    let outcome = if args.model.check_model.is_some() {
        check(&args)
    } else {
        run(args)
    };
    exit::report_beside_device(ROLE, outcome)
}

#[expect(clippy::print_stdout, reason = "the report is what was asked for")]
fn check(args: &Args) -> Result<(), Failure> {
    println!("{}", denoiser::check(&args.model)?);
    Ok(())
}

fn run(args: Args) -> Result<(), Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(|error| Failure::failed(&error))?;
    runtime.block_on(async {
        let telemetry = telemetry::init(ROLE, &args.shell)?;
        let shutdown = Shutdown::on_signals().map_err(|error| Failure::failed(&error))?;
        let outcome = denoiser::run(args, &shutdown).await;
        drop(telemetry);
        outcome
    })
}
