//! `fresco-ar-batcher`: arguments, check or run.

use ar_batcher::Args;
use protocol::Role;
use service::{
    exit::{self, Failure},
    process::{self, Process, Threads},
    reference,
};

const PROGRAM: &str = "fresco-ar-batcher";

fn main() -> ! {
    let args = reference::parse::<Args>().checked();
    let args = args.unwrap_or_else(|error| error.exit());
    let outcome = if args.model.check_model.is_some() {
        check(&args)
    } else {
        run(args)
    };
    exit::report_beside_device(PROGRAM, outcome)
}

#[expect(clippy::print_stdout, reason = "the report is what was asked for")]
fn check(args: &Args) -> Result<(), Failure> {
    println!("{}", ar_batcher::check(&args.model)?);
    Ok(())
}

fn run(args: Args) -> Result<(), Failure> {
    let (bus, shell) = (args.bus.clone(), args.shell.clone());
    let process = Process {
        program: PROGRAM,
        role: Role::ArBatcher,
        threads: Threads::One,
        bus: &bus,
        shell: &shell,
    };
    process::run(&process, async |shutdown, name, metrics| {
        ar_batcher::run(args, name, metrics, &shutdown).await
    })
}
