//! Flags that every role has. The environment is read by clap alone, so that the effective
//! configuration is what `--help` shows and what the process logs at start.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use clap::builder::{NonEmptyStringValueParser, PathBufValueParser, TypedValueParser as _};
use protocol::{Prefix, limits::ATTEMPTS_MAX};

use crate::{AdminKey, TraceArgs, address};

/// Where the broker is and which deployment this process belongs to.
#[derive(Clone, clap::Args)]
pub struct BusArgs {
    /// NATS server to connect to; repeat it for each node of a cluster
    #[arg(
        long = "nats-url",
        env = "FRESCO_NATS_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "nats://127.0.0.1:4222",
        value_delimiter = ',',
        // An empty variable is no address, and would be tried for ever.
        value_parser = NonEmptyStringValueParser::new()
    )]
    pub nats_urls: Vec<String>,

    /// File with this role's credentials: an nkey seed, a .creds file, or user:password; instead of those in the URL
    #[arg(
        long = "nats-credentials",
        env = "FRESCO_NATS_CREDENTIALS",
        value_name = "FILE"
    )]
    pub nats_credentials: Option<PathBuf>,

    /// File with the certificates (PEM) that the broker's is believed from; only TLS will do then
    #[arg(long = "nats-ca", env = "FRESCO_NATS_CA", value_name = "FILE")]
    pub nats_ca: Option<PathBuf>,

    /// Deployment name: the first token of its subjects and the start of its stream names
    #[arg(
        long,
        env = "FRESCO_PREFIX",
        value_name = "NAME",
        default_value = "fresco"
    )]
    pub prefix: Prefix,
}

/// What of the environment says where a process belongs and what it is called. Who starts others by flags keeps these from them:
/// what somebody exported for a command of his own must not send them to another broker.
pub const PLACE_VARIABLES: [&str; 5] = [
    "FRESCO_NATS_URL",
    "FRESCO_NATS_CREDENTIALS",
    "FRESCO_NATS_CA",
    "FRESCO_PREFIX",
    "FRESCO_ADVERTISE",
];

/// Leaves the credentials in the URLs out.
impl fmt::Debug for BusArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let urls = self.nats_urls.iter().map(|url| without_credentials(url));
        f.debug_struct("BusArgs")
            .field("nats_urls", &urls.collect::<Vec<_>>())
            .field("nats_credentials", &self.nats_credentials)
            .field("nats_ca", &self.nats_ca)
            .field("prefix", &self.prefix.to_string())
            .finish()
    }
}

/// A URL to show to people: `nats://user:password@host` becomes `nats://host`.
pub fn without_credentials(url: &str) -> String {
    let (scheme, rest) = url
        .split_once("://")
        .map_or(("", url), |(scheme, rest)| (scheme, rest));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if scheme.is_empty() {
        host.to_owned()
    } else {
        format!("{scheme}://{host}")
    }
}

/// How an AR-batcher puts rows together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Admission {
    /// Each output as soon as the engine has room, in any mix of sizes
    Continuous,
    /// Outputs of one size together, one batch at a time
    Batched,
}

impl std::fmt::Display for Admission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Continuous => "continuous",
            Self::Batched => "batched",
        })
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object a line
    Json,
}

/// How a process logs, answers probes and stops.
#[derive(Debug, Clone, clap::Args)]
pub struct ShellArgs {
    /// Address for /livez, /readyz and /metrics, and for who has the admin key /logfilter and /profile; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    pub health_listen: SocketAddr,

    /// IP address that others are told for it; needed where it listens on a wildcard
    #[arg(long, env = "FRESCO_ADVERTISE", value_name = "IP", value_parser = address::callable)]
    pub advertise: Option<IpAddr>,

    /// What to log, for example `info` or `info,messaging=debug`
    #[arg(
        long = "log",
        env = "FRESCO_LOG",
        value_name = "FILTER",
        default_value = "info"
    )]
    pub log_filter: String,

    /// File with the key of `/logfilter`, which changes what is logged while the process runs, and of `/profile`; without, there
    /// are no such pages
    #[arg(
        long = "admin-key-file",
        env = "FRESCO_ADMIN_KEY_FILE",
        value_name = "FILE",
        value_parser = PathBufValueParser::new().try_map(|file| AdminKey::read(&file))
    )]
    pub admin_key: Option<AdminKey>,

    /// How log lines look
    #[arg(long, env = "FRESCO_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,

    /// Seconds between the signal to stop and giving up on what is still running
    #[arg(long = "grace-s", value_name = "SECONDS", default_value = "4", value_parser = seconds)]
    pub grace: Duration,

    /// Address for tokio-console, which shows the process's tasks to whoever reaches it; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS")]
    pub tokio_console: Option<SocketAddr>,

    /// Where spans go.
    #[command(flatten)]
    pub traces: TraceArgs,
}

/// What a failure costs, in both worker roles.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct RetryArgs {
    /// Attempts of an output that may fail or take their worker down before it becomes a dead letter
    #[arg(long, value_name = "COUNT", default_value_t = ATTEMPTS_MAX, value_parser = clap::value_parser!(u32).range(1..=10))]
    pub attempts_max: u32,

    /// Failures of the engine in a row after which the worker takes no work until a self-test succeeds
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub failures_max: u32,

    /// Seconds without any progress of the engine after which it counts as hung and the process ends; longer than one
    /// denoising step or one prefill may take
    #[arg(long = "stall-max-s", value_name = "SECONDS", default_value = "300", value_parser = some_seconds)]
    pub stall_max: Duration,
}

/// A flag's number of seconds above 0, fractions allowed.
///
/// # Errors
///
/// A text for clap to show.
pub fn some_seconds(text: &str) -> Result<Duration, String> {
    match seconds(text) {
        Ok(Duration::ZERO) | Err(_) => Err("not a number of seconds above 0".to_owned()),
        Ok(duration) => Ok(duration),
    }
}

/// A number of seconds, fractions allowed.
fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok();
    let duration = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| "not a number of seconds, 0 or more".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    #[test]
    fn the_variables_of_a_place_are_all_that_the_flags_read() {
        let bus = BusArgs::augment_args(clap::Command::new("x"));
        let shell = ShellArgs::augment_args(clap::Command::new("x"));
        let advertise = shell
            .get_arguments()
            .filter(|arg| arg.get_id() == "advertise");
        let read = bus.get_arguments().chain(advertise).map(clap::Arg::get_env);
        let known = PLACE_VARIABLES.map(|name| Some(std::ffi::OsStr::new(name)));
        assert!(read.eq(known));
    }

    #[test]
    fn an_empty_address_of_a_broker_is_refused() {
        let parse = |urls: &str| {
            let command = BusArgs::augment_args(clap::Command::new("x"));
            let parsed = command.try_get_matches_from(["x", "--nats-url", urls]);
            parsed.map(drop).map_err(|error| error.kind())
        };
        assert_eq!(parse("nats://a,nats://b"), Ok(()));
        for empty in ["", ",", "nats://a,", "nats://a,,nats://b"] {
            let refused = Err(clap::error::ErrorKind::InvalidValue);
            assert_eq!(parse(empty), refused, "{empty:?}");
        }
    }

    #[test]
    fn credentials_are_not_shown() {
        let shown = [
            ("nats://host:4222", "nats://host:4222"),
            ("nats://user:p@ss@host", "nats://host"),
            ("token@host", "host"),
            ("host", "host"),
        ];
        for (url, wanted) in shown {
            assert_eq!(without_credentials(url), wanted);
            let args = BusArgs {
                nats_urls: vec![url.into()],
                nats_credentials: None,
                nats_ca: None,
                prefix: "fresco".parse().expect("allowed characters"),
            };
            assert!(!format!("{args:?}").contains('@'), "{args:?}");
        }
    }
}
