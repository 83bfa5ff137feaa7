//! `make failover`: how long a job is without a worker after its own went away.

#![expect(
    clippy::print_stdout,
    reason = "the table is for the person who started it"
)]

use std::process::ExitCode;

use clap::Parser;
use integration::failover::{ACK_WAIT, Loss, line, measure};

/// From a denoiser's loss until another one has its job, over and over; exit 1 when one is beyond its bound
#[derive(Debug, Parser)]
struct Args {
    /// Losses of each kind
    #[arg(long, default_value_t = 50)]
    count: usize,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    println!("seconds until another denoiser has the job; ack deadline {ACK_WAIT:?}");
    println!(
        "{:<26} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "loss", "count", "min", "p50", "p90", "max", "bound"
    );
    let mut late = 0;
    for loss in Loss::ALL {
        let gaps = measure(loss, args.count).await;
        println!("{}", line(loss, &gaps));
        late += gaps.iter().filter(|gap| **gap > loss.bound()).count();
    }
    println!("{late} beyond their bound");
    if late == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
