//! The command line. With `operator`, the only file that names environment variables (through clap).

mod api_key;
mod bench;
mod operator;

use std::{
    ffi::{OsStr, OsString},
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::{
    Args, CommandFactory, Parser, Subcommand,
    builder::{PathBufValueParser, TypedValueParser as _},
    error::ErrorKind,
};
use protocol::{ImageSize, Prefix, PriorId, PriorityClass, limits::OUTPUTS_PER_JOB_MAX};
use service::{Admission, BusArgs, ReplayArgs};

pub use self::api_key::{ApiKey, ApiKeyError};
pub use self::bench::{BenchCommand, BenchReportArgs, BenchRunArgs, LoadArgs, PlanArgs};
pub use self::operator::{
    CancelArgs, DeadCommand, ProfileArgs, TimesArgs, TopologyArgs, WantedArgs, WatchArgs,
    WhichDead, WorkersArgs,
};

const EXAMPLES: &str = "\
Examples:
  fresco up --model ./GLM-Image              broker, gateway, AR-batcher, 2 denoisers; Ctrl-C stops all
  fresco generate \"a red fox\" --size 512x512 -n 2 --out pictures
  fresco workers --nats-url nats://10.0.0.5:4222
  fresco dead replay --all --nats-url nats://10.0.0.5:4222
  fresco plan --times infra/times/ascend.json --rate 0.5 --slo-p99-s 90
  fresco bench run --times infra/times/ascend.json --time-scale 0.05 --concurrency 28";

/// Serves GLM-Image: prompts in over HTTP, pictures out, over NATS JetStream
#[derive(Debug, Parser)]
#[command(name = "fresco", version, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,

    /// What to log to stderr, for example `info` or `messaging=debug`
    #[arg(
        long = "log",
        env = "FRESCO_LOG",
        value_name = "FILTER",
        default_value = "error",
        global = true
    )]
    pub log_filter: String,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start everything on this machine and keep it running
    #[command(long_about = UP_HELP)]
    Up(Box<UpArgs>),
    /// Ask a gateway for pictures and write them to files
    Generate(GenerateArgs),
    /// End a job: what is not painted yet will not be
    Cancel(CancelArgs),
    /// Show the queues and the workers
    Workers(WorkersArgs),
    /// Show in which operators a worker's next steps spend their time
    #[command(long_about = operator::PROFILE_HELP)]
    Profile(ProfileArgs),
    /// Look at the outputs that were given up, try them again or drop them
    #[command(subcommand)]
    Dead(DeadCommand),
    /// Keep a deployment's streams on its broker, and give back at once what dead workers held
    #[command(long_about = operator::WATCH_HELP)]
    Watch(WatchArgs),
    /// Set up or check the streams on a NATS server
    #[command(subcommand)]
    Nats(NatsCommand),
    /// Make something else of a fleet's file
    #[command(subcommand)]
    Fleet(FleetCommand),
    /// Measure what a fleet makes of a load
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Say how large a fleet a load needs
    #[command(long_about = bench::PLAN_HELP)]
    Plan(PlanArgs),
    /// Become another program that ends with its parent
    #[command(hide = true)]
    Leash(LeashArgs),
}

const UP_HELP: &str = "\
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
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present_any = ["times", "fleet"],
        conflicts_with = "times"
    )]
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
            "engine", "model", "srt_urls", "times", "denoisers", "listen", "nats_urls", "prefix", "ack_wait_s",
            "result_ttl_s", "device", "dtype", "admission", "ar_slots_max", "ar_delay_ms", "admin_key_file", "tenants"
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
    #[arg(long, value_name = "N")]
    pub ar_slots_max: Option<u16>,

    /// How long a batch waits for company under batched admission, in milliseconds [default: the AR-batcher's]
    #[arg(long, value_name = "N")]
    pub ar_delay_ms: Option<u64>,

    /// Write prior tokens again for equal requests, and store none for variations
    #[arg(long)]
    pub no_prior_cache: bool,

    /// File with the key of every process's `/logfilter`
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

/// `fresco generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// What to paint; quoted texts in it are painted as texts
    pub prompt: String,

    /// Width and height in pixels, multiples of 32 [default: the gateway's]
    #[arg(long, value_name = "WIDTHxHEIGHT")]
    pub size: Option<ImageSize>,

    /// Pictures to make
    #[arg(short, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=i64::from(OUTPUTS_PER_JOB_MAX)))]
    pub n: u8,

    /// Picture i is painted with seed + i; the same seed gives the same picture [default: drawn at random]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Denoising steps [default: the gateway's]
    #[arg(long, value_name = "N")]
    pub steps: Option<u16>,

    /// How closely to follow the prompt [default: the gateway's]
    #[arg(long, value_name = "X")]
    pub guidance: Option<f64>,

    /// Who goes first: `high` before `standard` before `low` [default: standard]
    #[arg(long, value_name = "CLASS")]
    pub priority: Option<PriorityClass>,

    /// Paint variations of an earlier picture, told with it: its composition, and another seed, steps or guidance
    #[arg(long, value_name = "ID")]
    pub prior_id: Option<PriorId>,

    /// Folder for the pictures, made when missing
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub out: PathBuf,

    /// Where
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// Which gateway.
#[derive(Debug, Clone, Args)]
pub struct GatewayArgs {
    /// URL of a gateway
    #[arg(
        long = "gateway",
        env = "FRESCO_GATEWAY",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub url: String,

    /// File with the key that the gateway asks for, if it does; or have the key itself in FRESCO_API_KEY
    #[arg(
        long,
        value_name = "FILE",
        value_parser = PathBufValueParser::new().try_map(|file| ApiKey::read(&file))
    )]
    pub api_key_file: Option<ApiKey>,

    /// Meant for the environment: a command line is readable by everybody on the machine
    // Not OpenAI's variable: that key is not to be told to whoever answers here.
    #[arg(long, env = "FRESCO_API_KEY", hide = true, hide_env_values = true)]
    pub api_key: Option<ApiKey>,
}

impl GatewayArgs {
    /// The key, if one is given; a file is nearer than the environment.
    pub fn key(&self) -> Option<&ApiKey> {
        self.api_key_file.as_ref().or(self.api_key.as_ref())
    }
}

/// `fresco nats`.
#[derive(Debug, Subcommand)]
pub enum NatsCommand {
    /// Create the streams, consumers and buckets that are missing; never changes existing ones
    Init {
        /// Where
        #[command(flatten)]
        bus: BusArgs,
        /// What to choose
        #[command(flatten)]
        topology: TopologyArgs,
    },
    /// Say whether everything is there as this version wants it, and show what is not; changes nothing
    Check {
        /// Where
        #[command(flatten)]
        bus: BusArgs,
        /// What is to be in force
        #[command(flatten)]
        wanted: WantedArgs,
    },
    /// Make a credential for each role, and what the servers have to know of them: see infra/nats
    Keys {
        /// Folder to write them to; what is there is never replaced
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

/// `fresco fleet`.
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Write systemd units for the processes of a fleet's file, with the same flags as under `fresco up --fleet`
    Systemd(FleetSystemdArgs),
}

/// `fresco fleet systemd`.
#[derive(Debug, Args)]
pub struct FleetSystemdArgs {
    /// The file; see infra/fleet
    #[arg(long, value_name = "FILE")]
    pub fleet: PathBuf,

    /// Folder to write the units to, such as /etc/systemd/system
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Folder of the programs on the machine that runs them
    #[arg(long, value_name = "DIR", default_value = "/usr/local/bin")]
    pub programs: PathBuf,

    /// Folder of libtorch's libraries there, for programs that were built elsewhere
    #[arg(long, value_name = "DIR")]
    pub libtorch: Option<PathBuf>,

    /// Who they run as there
    #[arg(long, value_name = "USER", default_value = "fresco")]
    pub user: String,
}

/// `fresco leash`.
#[derive(Debug, Args)]
pub struct LeashArgs {
    /// Process that starts it
    #[arg(long)]
    pub parent: i32,

    /// The program to become
    pub program: PathBuf,

    /// Its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
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

impl Cli {
    /// The flags that go together, or the error that says which do not.
    pub fn checked(self) -> Result<Self, clap::Error> {
        if let Command::Up(up) = &self.command
            && up.engine != Engine::Replay
        {
            up.replay.refuse::<Self>()?;
        }
        if let Command::Up(up) = &self.command
            && up.engine != Engine::Srt
            && !up.srt_urls.is_empty()
        {
            let text = "--srt-url can only be used with --engine srt";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, text));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_fleet_has_a_model_or_replays() {
        let up = |flags: &str| {
            let flags = ["fresco", "up"].into_iter().chain(flags.split_whitespace());
            Cli::try_parse_from(flags).and_then(Cli::checked).is_ok()
        };
        for (flags, allowed) in [
            ("--model m", true),
            ("--engine native --model m", true),
            ("--engine srt --srt-url http://h:1 --model m", true),
            ("--engine srt --model m", false),
            ("--engine srt --srt-url http://h:1", false),
            ("--model m --srt-url http://h:1", false),
            ("--engine replay --times t --time-scale 2 --faults f", true),
            ("", false),
            ("--engine replay", false),
            ("--engine native --times t", false),
            ("--times t", false),
            ("--model m --faults f", false),
            ("--engine replay --times t --model m", false),
            ("--engine replay --times t --dtype bf16", false),
        ] {
            assert_eq!(up(flags), allowed, "{flags}");
        }
    }

    #[test]
    fn a_leashed_program_keeps_its_own_flags() {
        let cli = Cli::parse_from([
            "fresco", "leash", "--parent", "7", "--", "prog", "--parent", "8", "--log", "x",
        ]);
        let Command::Leash(leash) = cli.command else {
            panic!("not a leash: {cli:?}")
        };
        assert_eq!((leash.parent, leash.program), (7, PathBuf::from("prog")));
        assert_eq!(leash.arguments, ["--parent", "8", "--log", "x"]);
    }
}
