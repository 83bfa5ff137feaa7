//! `make chaos`: kills and freezes everything under load, and audits what became of every job.

#![expect(
    clippy::print_stdout,
    reason = "the report is for the person who started it"
)]

use std::{process::ExitCode, time::Duration};

use clap::Parser;
use integration::chaos::{Config, Logs, Servers, run};

/// Thousands of requests against a fleet that replays, while a seeded script strikes it; exit 1 on any violation
#[derive(Debug, Parser)]
struct Args {
    /// Requests at least; they go on until every fault has struck
    #[arg(long, default_value_t = 3_000)]
    requests: usize,

    /// Kills and freezes of processes; terminations are a quarter more
    #[arg(long, default_value_t = 208)]
    faults: usize,

    /// Kills of the broker; freezes of it are half as many more
    #[arg(long, default_value_t = 6)]
    broker_faults: usize,

    /// Decides what is asked for and what is struck when [default: the clock]
    #[arg(long)]
    seed: Option<u64>,

    /// Clients at once
    #[arg(long, default_value_t = 16)]
    clients: usize,

    /// Seconds that the faults are spread over
    #[arg(long, default_value_t = 240)]
    seconds: u64,

    /// Three brokers with three copies of everything, whose leaders are killed, and which are rolled at the end
    #[arg(long)]
    cluster: bool,

    /// Keep the logs of a run without a violation too
    #[arg(long)]
    keep_logs: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    let clock = integration::chaos::pauses::now_ms();
    let seed = args
        .seed
        .unwrap_or(u64::try_from(clock).unwrap_or_default());
    println!("seed {seed}");
    let config = Config {
        seed,
        requests: args.requests,
        faults: args.faults,
        broker_kills: args.broker_faults,
        clients: args.clients,
        lasts: Duration::from_secs(args.seconds),
        servers: if args.cluster {
            Servers::Cluster
        } else {
            Servers::One
        },
        logs: if args.keep_logs {
            Logs::Always
        } else {
            Logs::OfViolations
        },
    };
    let report = run(&config).await;
    println!("{report}");
    if report.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
