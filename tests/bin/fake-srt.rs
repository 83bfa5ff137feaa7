//! `fake-srt`: something to point `--engine srt` at where no SGLang runs. It writes no picture of any prompt.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;
use integration::srt::{FakeSrt, Setup};
use replay::{CODEBOOK_SIZE, Times};

/// A fake SRT server: the contract of SGLang's /generate without a model
#[derive(Debug, Parser)]
struct Args {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:30020")]
    listen: SocketAddr,

    /// JSON file with the times of the AR stage, as for `--engine replay`
    #[arg(long, value_name = "FILE")]
    times: PathBuf,

    /// Multiplies every time of `--times`
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    time_scale: f64,

    /// Ids are below this; 512 for the tiny checkpoint
    #[arg(long, value_name = "COUNT", default_value_t = CODEBOOK_SIZE, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    codebook_size: u32,

    /// Rows at once; more are refused as by a full queue
    #[arg(long, value_name = "COUNT", default_value_t = 128)]
    rows_max: usize,

    /// JSON file with faults, read at every call: [{"seed": 7, "fault": "short_ids"}]
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let times = Times::read(&args.times, args.time_scale)?;
    let setup = Setup {
        rows_max: args.rows_max,
        script_file: args.script,
        ..Setup::new(times, args.codebook_size)
    };
    let server = FakeSrt::start(args.listen, setup).await?;
    say(&server.url());
    tokio::signal::ctrl_c().await?;
    server.kill().await;
    Ok(())
}

#[expect(
    clippy::print_stdout,
    reason = "where it listens is what a person waits for"
)]
fn say(url: &str) {
    println!("{url}");
}
