//! `fresco-denoiser`: arguments, check or run.

use clap::Parser;
use denoiser::Args;
use service::{exit, exit::Failure, process, process::Threads};

const ROLE: &str = "fresco-denoiser";

fn main() -> ! {
    let args = Args::parse().checked().unwrap_or_else(|error| error.exit());
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
    let shell = args.shell.clone();
    process::run(ROLE, Threads::One, &shell, async |shutdown| {
        denoiser::run(args, &shutdown).await
    })
}
