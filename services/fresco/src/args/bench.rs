//! What can be measured, and what can be foretold.

use std::path::PathBuf;

use clap::{
    Args, Subcommand,
    builder::{PathBufValueParser, TypedValueParser as _},
};
use protocol::{
    ImageSize,
    limits::{AR_SLOTS_MAX, OUTPUTS_PER_JOB_MAX},
};
use service::Admission;

use super::ApiKey;

/// Slowest open load: one request in three hours.
const RATE_MIN: f64 = 1e-4;
/// Fastest: no client of one task sends more.
const RATE_MAX: f64 = 1e4;
/// Quickest replay. Below it a table's seconds are no longer the milliseconds in which gateways tell timings.
const TIME_SCALE_MIN: f64 = 1e-3;
/// Slowest, which is also the largest that the replay engines take.
const TIME_SCALE_MAX: f64 = 1e3;
/// Every request's seed is this one and its number: all of them are still seeds of the API.
const SEED_MAX: u64 = u32::MAX as u64;

pub(super) const RUN_HELP: &str = "\
Starts a fleet of its own in a temporary folder, as `fresco up --engine replay` does, asks its gateway for pictures and
prints what came of it beside the best that any policy could reach and what `fresco plan` foretells. Times and rates are
those of the table: at --time-scale 0.05 everything happens 20 times as fast, and is told as if it did not. Under
--admission batched a batch waits for company for 20 ms of the table, at least 1 ms of the clock. The fleet keeps no
prior tokens (--no-prior-cache). Exits with 1 when a request got no pictures.";

pub(super) const PLAN_HELP: &str = "\
Simulates the fleet in virtual time, with the rules of the AR-batcher and the step-rate model of a continuously batching
AR engine, and prints the fewest denoisers, and for them the fewest AR slots, that keep the load within the SLO. What
both --ar-slots and --denoisers fix is only simulated. A fleet for --rate also has to be able to do more than comes,
or its queue would grow for ever. Under --admission batched a batch waits for company for 20 ms of the table, the
AR-batcher's default.";

/// `fresco bench`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Measure a fleet of replay engines under a load
    #[command(long_about = RUN_HELP)]
    Run(Box<BenchRunArgs>),
    /// Print the results of a folder as a table, and draw them
    Report(BenchReportArgs),
}

/// Requests, and how they come.
#[derive(Debug, Clone, Args)]
pub struct LoadArgs {
    /// Clients that each wait for their pictures before they ask again
    #[arg(long, value_name = "CLIENTS", required_unless_present = "rate", conflicts_with = "rate", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub concurrency: Option<u16>,

    /// Requests a second that come whatever happens, at random (Poisson)
    #[arg(long, value_name = "PER_SECOND", value_parser = rate)]
    pub rate: Option<f64>,

    /// Sizes of the requests, taken in turn
    #[arg(
        long,
        value_name = "WIDTHxHEIGHT,…",
        value_delimiter = ',',
        default_value = "1024x1024"
    )]
    pub sizes: Vec<ImageSize>,

    /// Pictures of each request
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(OUTPUTS_PER_JOB_MAX)))]
    pub n: u8,

    /// Denoising steps
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub steps: u16,

    /// Requests in all; the first ones are the ramp and do not count
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub requests: u32,

    /// Of the pictures and of the arrivals at random
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(0..=SEED_MAX))]
    pub seed: u64,
}

/// `fresco bench run`.
#[derive(Debug, Args)]
pub struct BenchRunArgs {
    /// JSON file with the times of the stages
    #[arg(long, value_name = "FILE")]
    pub times: PathBuf,

    /// Multiplies every time of `--times`
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = time_scale)]
    pub time_scale: f64,

    /// Denoisers of the fleet
    #[arg(long, value_name = "N", default_value_t = 14, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub denoisers: u16,

    /// Most outputs in flight on the AR engine
    #[arg(long, value_name = "N", default_value_t = 28, value_parser = clap::value_parser!(u16).range(1..=i64::from(AR_SLOTS_MAX)))]
    pub ar_slots: u16,

    /// Who runs together there
    #[arg(long, value_enum, default_value_t = Admission::Continuous)]
    pub admission: Admission,

    /// Send the spans of every job to a collector that only counts, for what tracing costs
    #[arg(long, conflicts_with = "url")]
    pub traced: bool,

    /// What is asked for
    #[command(flatten)]
    pub load: LoadArgs,

    /// Ask this gateway instead of starting a fleet; the other flags say what fleet it has
    #[arg(long = "url", value_name = "URL")]
    pub url: Option<String>,

    /// File with the key that it asks for, if it does
    #[arg(
        long,
        value_name = "FILE",
        requires = "url",
        value_parser = PathBufValueParser::new().try_map(|file| ApiKey::read(&file))
    )]
    pub api_key_file: Option<ApiKey>,

    /// Name of the result
    #[arg(long, value_name = "NAME", default_value = "run", requires = "out")]
    pub name: String,

    /// Folder for the result, NAME.json
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// What was built, told in the result: `git describe --always --dirty`
    #[arg(long, value_name = "TEXT", requires = "out")]
    pub commit: Option<String>,
}

/// `fresco bench report`.
#[derive(Debug, Args)]
pub struct BenchReportArgs {
    /// Folder with results of `fresco bench run --out`
    pub results: PathBuf,

    /// SVG file to draw throughput over the number of sizes into
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// `fresco plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// JSON file with the times of the stages
    #[arg(long, value_name = "FILE")]
    pub times: PathBuf,

    /// What is asked for
    #[command(flatten)]
    pub load: LoadArgs,

    /// Seconds within which 99 of 100 requests are to be answered
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub slo_p99_s: f64,

    /// Only with so many denoisers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub denoisers: Option<u16>,

    /// Only with so many outputs in flight on the AR engine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(AR_SLOTS_MAX)))]
    pub ar_slots: Option<u16>,

    /// Who runs together there
    #[arg(long, value_enum, default_value_t = Admission::Continuous)]
    pub admission: Admission,

    /// For programs
    #[arg(long)]
    pub json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    within(text, RATE_MIN, RATE_MAX)
}

fn time_scale(text: &str) -> Result<f64, String> {
    within(text, TIME_SCALE_MIN, TIME_SCALE_MAX)
}

fn within(text: &str, min: f64, max: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        // NaN is in no range.
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        Ok(_) | Err(_) => Err(format!("not a number from {min} to {max}")),
    }
}

/// A number above 0.
fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        Ok(_) | Err(_) => Err("not a number above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::args::Cli;

    #[test]
    fn numbers_out_of_range_are_refused() {
        for (flag, inside, outside) in [
            (
                "--rate",
                &["0.0001", "0.5", "10000"][..],
                &["1e-300", "0", "-1", "1e300", "inf", "NaN", "x"][..],
            ),
            (
                "--time-scale",
                &["0.001", "0.05", "1000"],
                &["1e-300", "0", "1001", "inf", "NaN"],
            ),
            (
                "--seed",
                &["0", "4294967295"],
                &["4294967296", "18446744073709551615", "-1"],
            ),
        ] {
            let parsed = |value: &str| {
                let load = match flag {
                    "--rate" => "",
                    _ => "--rate=1",
                };
                let line =
                    format!("fresco bench run --times t {load} --url http://h {flag}={value}");
                Cli::try_parse_from(line.split_whitespace()).is_ok()
            };
            for value in inside {
                assert!(parsed(value), "{flag} {value}");
            }
            for value in outside {
                assert!(!parsed(value), "{flag} {value}");
            }
        }
    }
}
