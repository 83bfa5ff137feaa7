//! What an operator can ask of a running deployment.

use std::{fmt, net::IpAddr, path::PathBuf, time::Duration};

use clap::{
    Args, Subcommand,
    builder::{NonEmptyStringValueParser, PathBufValueParser, TypedValueParser},
};
use messaging::Wanted;
use protocol::{
    JobId, OutputId, Tenant, WorkerId,
    limits::{ACK_WAIT, ACK_WAIT_OF_CLUSTER, RESULT_TTL},
    topology::TopologyOptions,
};
use service::{
    AdminKey, BusArgs, address,
    profile::{STEPS_MAX, WAIT_S_MAX, Wish},
    without_credentials,
};

use super::GatewayArgs;

pub(super) const WATCH_HELP: &str = "\
Keeps the deployment's streams, consumers and buckets on its broker: looks at the start, after each reconnect and every
5 s, creates what is missing, reports what differs and never changes it. With --system-url it also hears which worker's
connection ends; what a worker held that is not back within 0.5 s goes to others at once instead of after the ack
deadline. A system account that cannot be used is told and tried again; the streams are kept meanwhile. Any number may run. `fresco up` does the same for the broker it starts.";

/// `fresco cancel`.
#[derive(Debug, Args)]
pub struct CancelArgs {
    /// The job's id
    pub job: JobId,

    /// Where
    #[command(flatten)]
    pub gateway: GatewayArgs,
}

/// `fresco workers`.
#[derive(Debug, Args)]
pub struct WorkersArgs {
    /// Where
    #[command(flatten)]
    pub bus: BusArgs,

    /// For programs
    #[arg(long)]
    pub json: bool,
}

pub(super) const PROFILE_HELP: &str = "\
Asks a worker whose engine runs on libtorch (see `fresco workers`) to record its next denoising steps, or decode steps of
an AR-batcher, and shows the operators that were called: how often, how long by themselves and with what they called. On
a CPU these are the times that the operators ran, on a CUDA device the times to launch them. The picture is the same;
the recorded steps are slower.";

/// `fresco profile`.
#[derive(Debug, Args)]
pub struct ProfileArgs {
    /// Where
    #[command(flatten)]
    pub bus: BusArgs,

    /// The worker's name, as `fresco workers` has it
    pub worker: WorkerId,

    /// File with the worker's admin key, that of its own `--admin-key-file`
    #[arg(
        long = "admin-key-file",
        env = "FRESCO_ADMIN_KEY_FILE",
        value_name = "FILE",
        value_parser = PathBufValueParser::new().try_map(|file| AdminKey::read(&file))
    )]
    pub admin_key: AdminKey,

    /// IP address of a machine whose workers the key may be sent to; repeat it for several. Without it only to those of this one
    // Where a worker is says whoever may write on the broker: who knows which machines are theirs is the operator.
    #[arg(
        long = "worker-host",
        env = "FRESCO_WORKER_HOSTS",
        value_name = "IP",
        value_delimiter = ',',
        value_parser = address::callable
    )]
    pub worker_hosts: Vec<IpAddr>,

    /// Steps to record, one after the other
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(STEPS_MAX)))]
    pub steps: u32,

    /// Seconds to wait for a job that makes them; they may take longer, 600 s at most
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=i64::from(WAIT_S_MAX)))]
    pub wait_s: u32,

    /// For programs
    #[arg(long)]
    pub json: bool,
}

impl ProfileArgs {
    /// As the worker takes it.
    pub const fn wish(&self) -> Wish {
        Wish {
            steps: self.steps,
            wait_s: self.wait_s,
        }
    }
}

/// `fresco dead`.
#[derive(Debug, Subcommand)]
pub enum DeadCommand {
    /// List them; never shows a prompt
    List {
        /// Where
        #[command(flatten)]
        bus: BusArgs,
        /// For programs
        #[arg(long)]
        json: bool,
    },
    /// Show all about one, what was tried included
    Show {
        /// Where
        #[command(flatten)]
        bus: BusArgs,
        /// Which
        output: OutputId,
        /// The prompt too
        #[arg(long)]
        prompt: bool,
    },
    /// Queue it again as a new job, with its seed and the time it had
    Replay {
        /// Where
        #[command(flatten)]
        bus: BusArgs,
        /// Which
        #[command(flatten)]
        which: WhichDead,
        /// Whose the new job is where the record of the first, kept for 24 h, does not say any more [default: nobody's]
        #[arg(long, value_name = "NAME")]
        tenant: Option<Tenant>,
        /// Who answers for the new job
        #[command(flatten)]
        gateway: GatewayArgs,
    },
    /// Forget it
    Drop {
        /// Where
        #[command(flatten)]
        bus: BusArgs,
        /// Which
        #[command(flatten)]
        which: WhichDead,
    },
}

/// One dead output or all of them.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct WhichDead {
    /// The output's id
    pub output: Option<OutputId>,

    /// All of them
    #[arg(long)]
    pub all: bool,
}

/// How long things last. Fixed when the streams are made; services read the values in force from the broker.
#[derive(Debug, Clone, Copy, Args)]
pub struct TimesArgs {
    /// Seconds a silent worker keeps a message [default: 15, with copies on several servers 30]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub ack_wait_s: Option<u64>,

    /// Seconds a result can be fetched; an idempotency key is remembered twice as long [default: 3600]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub result_ttl_s: Option<u64>,
}

impl TimesArgs {
    /// For this many servers that keep a copy.
    pub fn options(self, replicas: Option<u8>) -> TopologyOptions {
        let ack_wait = match replicas {
            None | Some(0 | 1) => ACK_WAIT,
            Some(_) => ACK_WAIT_OF_CLUSTER,
        };
        let or = |seconds: Option<u64>, default| seconds.map_or(default, Duration::from_secs);
        TopologyOptions {
            ack_wait: or(self.ack_wait_s, ack_wait),
            result_ttl: or(self.result_ttl_s, RESULT_TTL),
            replicas,
        }
    }
}

/// What an operator chooses of the streams.
#[derive(Debug, Clone, Copy, Args)]
pub struct TopologyArgs {
    /// How long things last
    #[command(flatten)]
    pub times: TimesArgs,

    /// Servers that keep a copy of everything: 1, or 3 or 5 in a cluster, where nothing is made without it
    #[arg(long, value_name = "N", value_parser = replicas())]
    pub replicas: Option<u8>,
}

impl TopologyArgs {
    /// As the topology takes them.
    pub fn options(self) -> TopologyOptions {
        self.times.options(self.replicas)
    }
}

/// What an operator expects of the streams; what is not given may be as it is.
#[derive(Debug, Clone, Copy, Args)]
pub struct WantedArgs {
    /// Seconds a silent worker keeps a message
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub ack_wait_s: Option<u64>,

    /// Seconds a result can be fetched
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub result_ttl_s: Option<u64>,

    /// Servers that keep a copy of everything
    #[arg(long, value_name = "N", value_parser = replicas())]
    pub replicas: Option<u8>,
}

impl WantedArgs {
    /// As the bus takes them.
    pub fn wanted(self) -> Wanted {
        Wanted {
            ack_wait: self.ack_wait_s.map(Duration::from_secs),
            result_ttl: self.result_ttl_s.map(Duration::from_secs),
            replicas: self.replicas,
        }
    }
}

/// An even number of copies survives no more losses than one less.
fn replicas() -> impl TypedValueParser<Value = u8> {
    clap::builder::PossibleValuesParser::new(["1", "3", "5"]).try_map(|text| text.parse::<u8>())
}

/// `fresco watch`.
#[derive(Clone, Args)]
pub struct WatchArgs {
    /// Where
    #[command(flatten)]
    pub bus: BusArgs,

    /// NATS server with a user of its system account, such as nats://user:password@host; repeat it for each node
    #[arg(
        long = "system-url",
        env = "FRESCO_SYSTEM_URL",
        hide_env_values = true,
        value_name = "URL",
        value_delimiter = ',',
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub system_urls: Vec<String>,

    /// File with the credentials of that user, instead of those in the URL
    #[arg(
        long = "system-credentials",
        env = "FRESCO_SYSTEM_CREDENTIALS",
        value_name = "FILE",
        requires = "system_urls"
    )]
    pub system_credentials: Option<PathBuf>,

    /// Of the streams, when they are made
    #[command(flatten)]
    pub topology: TopologyArgs,
}

/// Leaves the credentials in the URLs out.
impl fmt::Debug for WatchArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls = self.system_urls.iter().map(|url| without_credentials(url));
        f.debug_struct("WatchArgs")
            .field("bus", &self.bus)
            .field("system_urls", &urls.collect::<Vec<_>>())
            .field("system_credentials", &self.system_credentials)
            .field("topology", &self.topology)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser, error::ErrorKind};

    use crate::args::{Cli, Command, NatsCommand};

    #[test]
    fn dead_outputs_are_named_one_by_one_or_all_at_once() {
        let output = "0123456789abcdef0123456789abcdef-0";
        for (arguments, good) in [
            (&[output][..], true),
            (&["--all"], true),
            (&[], false),
            (&[output, "--all"], false),
            (&["not-an-output"], false),
        ] {
            for command in ["replay", "drop"] {
                let line = [&["fresco", "dead", command][..], arguments].concat();
                assert_eq!(
                    Cli::try_parse_from(line).is_ok(),
                    good,
                    "{command} {arguments:?}"
                );
            }
        }
    }

    #[test]
    fn streams_are_kept_on_an_odd_number_of_servers() {
        let parse = |replicas| {
            let cli =
                Cli::try_parse_from(["fresco", "nats", "init", "--replicas", replicas]).ok()?;
            let Command::Nats(NatsCommand::Init { topology, .. }) = cli.command else {
                panic!("not init: {cli:?}")
            };
            topology.options().replicas
        };
        let parsed = ["0", "1", "2", "3", "4", "5", "7", "x"].map(parse);
        assert_eq!(
            parsed,
            [None, Some(1), None, Some(3), None, Some(5), None, None]
        );
    }

    #[test]
    fn a_silent_worker_keeps_a_message_for_longer_where_an_election_takes_its_time() {
        for (arguments, seconds) in [
            (&[][..], 15),
            (&["--replicas", "1"], 15),
            (&["--replicas", "3"], 30),
            (&["--replicas", "5"], 30),
            (&["--replicas", "3", "--ack-wait-s", "7"], 7),
        ] {
            let line = [&["fresco", "nats", "init"][..], arguments].concat();
            let Command::Nats(NatsCommand::Init { topology, .. }) = Cli::parse_from(line).command
            else {
                panic!("not init")
            };
            let wait = topology.options().ack_wait;
            assert_eq!(wait.as_secs(), seconds, "{arguments:?}");
        }
    }

    #[test]
    fn an_empty_address_is_refused() {
        for flags in [
            ["up", "--model", "m", "--nats-url"].as_slice(),
            &["watch", "--system-url"],
            &["workers", "--nats-url"],
        ] {
            let parse = |url| {
                let all = ["fresco"].iter().chain(flags).chain([&url]);
                Cli::try_parse_from(all)
                    .map(drop)
                    .map_err(|error| error.kind())
            };
            assert_eq!(parse("nats://h"), Ok(()), "{flags:?}");
            assert_eq!(parse(""), Err(ErrorKind::InvalidValue), "{flags:?}");
        }
    }

    #[test]
    fn credentials_of_the_system_account_are_not_shown() {
        let cli = Cli::parse_from(["fresco", "watch", "--system-url", "nats://u:secret@h:1"]);
        let text = format!("{cli:?}");
        assert!(
            text.contains("nats://h:1") && !text.contains("secret"),
            "{text}"
        );
    }
}
