//! `fresco up`: what starts on this machine.

use std::{
    ffi::OsStr,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::{Args, Parser as _, builder::NonEmptyStringValueParser};
use protocol::{
    Prefix,
    limits::{AR_DELAY_MS_MAX, AR_SLOTS_MAX},
};
use service::{Admission, ReplayArgs};

use super::{Cli, Command, TimesArgs};

pub(super) const HELP: &str = "\
Starts nats-server, fresco-gateway, fresco-ar-batcher and the denoisers, waits until each is ready and prints the
URL. A process that dies is restarted. Ctrl-C or SIGTERM stops all within 5 s; work in flight goes back to the queue and is
done by the next `fresco up` on the same data folder. With --fleet, what the file says: each worker on its device, so many
loading at a time, and a Ctrl-C that first waits for the requests that were let in. More denoisers can be started by hand, on any machine
that reaches the broker: fresco-denoiser --nats-url URL --model DIR.";

/// Who writes and paints in a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Engine {
    /// The model, on libtorch
    Native,
    /// SRT servers write, the model on libtorch paints
    Srt,
    /// No model: times, pictures and failures by table
    Replay,
}

/// `fresco up`.
#[derive(Debug, Clone, Args)]
pub struct UpArgs {
    /// Who writes and paints
    #[arg(long, value_enum, default_value_t = Engine::Native)]
    pub engine: Engine,

    /// Folder of the model, in the layout of zai-org/GLM-Image
    #[arg(long, value_name = "DIR", conflicts_with = "times")]
    pub model: Option<PathBuf>,

    /// SRT server that `--engine srt` writes with; repeat it for several
    #[arg(
        long = "srt-url",
        value_name = "URL",
        value_delimiter = ',',
        required_if_eq("engine", "srt")
    )]
    pub srt_urls: Vec<String>,

    /// What there is instead of a model
    #[command(flatten)]
    pub replay: ReplayArgs,

    /// File that says what runs on which device, instead of flags; see infra/fleet
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "engine", "model", "srt_urls", "times", "time_scale", "faults", "denoisers", "listen", "nats_urls", "prefix", "ack_wait_s",
            "result_ttl_s", "device", "dtype", "admission", "ar_slots_max", "ar_delay_ms", "no_prior_cache", "admin_key_file",
            "tenants"
        ]
    )]
    pub fleet: Option<PathBuf>,

    /// Folder for queues, results and logs; kept between runs
    #[arg(long, value_name = "DIR", default_value = "fresco-data")]
    pub data: PathBuf,

    /// Denoisers to run; n pictures of a request are painted by n denoisers at once
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub denoisers: u16,

    /// Address of the gateway; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,

    /// Use this NATS server instead of starting one; repeat it for each node of a cluster
    // Not from the environment: a forgotten variable must not send a trial run to someone's cluster.
    #[arg(
        long = "nats-url",
        value_name = "URL",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new(),
        conflicts_with = "nats_server"
    )]
    pub nats_urls: Vec<String>,

    /// The nats-server program, 2.12 or newer [default: from the PATH, .fresco/bin or the cache of `make setup`]
    #[arg(long, value_name = "FILE")]
    pub nats_server: Option<PathBuf>,

    /// Deployment name: the first token of its subjects and the start of its stream names
    #[arg(long, value_name = "NAME", default_value = "fresco")]
    pub prefix: Prefix,

    /// Of the streams, when they are made
    #[command(flatten)]
    pub times: TimesArgs,

    /// Write the gateway's URL to this file once everything is ready
    #[arg(long, value_name = "FILE")]
    pub url_file: Option<PathBuf>,

    /// Device of the AR-batcher and the denoisers [default: theirs]
    #[arg(long, value_name = "DEVICE", conflicts_with = "times")]
    pub device: Option<String>,

    /// Numbers the models compute with, `f32` or `bf16` [default: theirs]
    #[arg(long, value_name = "DTYPE", conflicts_with = "times")]
    pub dtype: Option<String>,

    /// How the AR stage puts outputs together [default: the AR-batcher's]
    #[arg(long, value_enum)]
    pub admission: Option<Admission>,

    /// Most outputs in flight on the AR engine [default: the AR-batcher's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(AR_SLOTS_MAX)))]
    pub ar_slots_max: Option<u16>,

    /// How long a batch waits for company under batched admission, in milliseconds [default: the AR-batcher's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=AR_DELAY_MS_MAX))]
    pub ar_delay_ms: Option<u64>,

    /// Write prior tokens again for equal requests, and store none for variations
    #[arg(long)]
    pub no_prior_cache: bool,

    /// File with the key of every process's `/logfilter` and `/profile`
    #[arg(long, value_name = "FILE")]
    pub admin_key_file: Option<PathBuf>,

    /// File that names the clients and the hashes of their keys, see docs/tenants.md [default: all are one, without a key]
    #[arg(long, value_name = "FILE")]
    pub tenants: Option<PathBuf>,

    /// Folder of the services' programs [default: that of this one]
    #[arg(long, value_name = "DIR", hide = true)]
    pub bin_dir: Option<PathBuf>,

    /// Where `make setup` keeps its downloads
    #[arg(long, value_name = "DIR", env = "FRESCO_CACHE", hide = true)]
    pub cache: Option<PathBuf>,
}

impl UpArgs {
    /// Those of `fresco up --fleet FILE`, without any other flag.
    pub fn of_fleet(file: &Path) -> Result<Self, clap::Error> {
        let flags = [
            OsStr::new("fresco"),
            OsStr::new("up"),
            OsStr::new("--fleet"),
            file.as_os_str(),
        ];
        match Cli::try_parse_from(flags)?.command {
            Command::Up(args) => Ok(*args),
            other => unreachable!("`up` is parsed as {other:?}"),
        }
    }
}
