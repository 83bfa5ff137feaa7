//! The command line. With its parts, the only file that names environment variables (through clap).

mod api_key;
mod bench;
mod operator;
mod up;

use std::{ffi::OsString, path::PathBuf};

use clap::{
    Args, CommandFactory, Parser, Subcommand,
    builder::{PathBufValueParser, TypedValueParser as _},
    error::ErrorKind,
};
use protocol::{ImageSize, PriorId, PriorityClass, limits::OUTPUTS_PER_JOB_MAX};
use service::{BusArgs, LogFormat, require_model};

pub use self::api_key::{ApiKey, ApiKeyError};
pub use self::bench::{BenchCommand, BenchReportArgs, BenchRunArgs, LoadArgs, PlanArgs};
pub use self::operator::{
    CancelArgs, DeadCommand, ProfileArgs, TimesArgs, TopologyArgs, WantedArgs, WatchArgs,
    WhichDead, WorkersArgs,
};
pub use self::up::{Engine, UpArgs};

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

    /// What to log to stderr, for example `info` or `messaging=debug` [default: error; info for watch]
    #[arg(long = "log", env = "FRESCO_LOG", value_name = "FILTER", global = true)]
    pub log_filter: Option<String>,

    /// How log lines look
    #[arg(long, env = "FRESCO_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text, global = true)]
    pub log_format: LogFormat,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start everything on this machine and keep it running
    #[command(long_about = up::HELP)]
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
    #[arg(
        long,
        env = "FRESCO_API_KEY",
        hide = true,
        hide_env_values = true,
        value_parser = api_key::Quietly
    )]
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
    /// Change what differs to what this version wants, and to what is said here; while the deployment is stopped
    Change {
        /// Where
        #[command(flatten)]
        bus: BusArgs,
        /// What is to be in force; what is not said stays as it is
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

impl Cli {
    /// What is logged: of a command only what somebody has to act on, since it tells the rest itself; of one that runs beside
    /// a broker, where nobody reads along, what a service logs.
    pub fn log_filter(&self) -> String {
        let unsaid = match &self.command {
            Command::Watch(_) => "info",
            _ => "error",
        };
        let said = self.log_filter.clone();
        said.unwrap_or_else(|| unsaid.to_owned())
    }

    /// The flags that go together, or the error that says which do not.
    pub fn checked(self) -> Result<Self, clap::Error> {
        if let Command::Up(up) = &self.command
            && up.engine != Engine::Replay
        {
            up.replay.refuse::<Self>()?;
            if up.fleet.is_none() {
                require_model::<Self>(up.model.as_ref())?;
            }
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
    use protocol::limits::AR_SLOTS_MAX;

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
    fn an_engine_has_as_many_slots_wherever_they_are_asked_for() {
        for flags in [
            "bench run --times t --rate 1 --ar-slots",
            "plan --times t --rate 1 --slo-p99-s 1 --ar-slots",
            "up --model m --ar-slots-max",
        ] {
            let takes = |slots: u16| {
                let line = format!("fresco {flags} {slots}");
                Cli::try_parse_from(line.split_whitespace()).is_ok()
            };
            let taken = [0, 1, AR_SLOTS_MAX, AR_SLOTS_MAX + 1].map(takes);
            assert_eq!(taken, [false, true, true, false], "{flags}");
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
