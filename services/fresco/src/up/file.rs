//! The declarative file of a fleet, as `fresco up --fleet` and `fresco fleet systemd` read it: what runs, on which devices,
//! how it starts and stops. Read and checked as a whole, so that a mistake in its last line is told before the first process
//! starts. It knows no process.

mod check;
mod server;

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use self::server::ArServer;
use protocol::Prefix;
use serde::Deserialize;
use service::{
    Admission,
    exit::Failure,
    file_error::{Place, without_values},
};

use super::{
    fleet::AR_BATCHER,
    site::{Pinned, Site},
    supervisor::{Limits, StartRule},
};
use crate::args::{Engine, UpArgs};

/// A fleet file weighs one or two KiB.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Denoisers of one machine; `--denoisers` has the same limit.
const DENOISERS_MAX: usize = 64;

/// The file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FleetFile {
    #[serde(default = "default_prefix")]
    prefix: String,
    engine: EngineName,
    model: Option<PathBuf>,
    times: Option<PathBuf>,
    time_scale: Option<f64>,
    faults: Option<PathBuf>,
    admin_key_file: Option<PathBuf>,
    #[serde(default)]
    broker: Broker,
    gateway: Gateway,
    ar: Ar,
    denoisers: Denoisers,
    pin: Option<Pin>,
    #[serde(default)]
    start: Start,
    #[serde(default)]
    stop: Stop,
}

fn default_prefix() -> String {
    "fresco".to_owned()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EngineName {
    Native,
    Srt,
    Replay,
}

/// Without URLs one is started.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Broker {
    #[serde(default)]
    urls: Vec<String>,
    /// Folder of `fresco nats keys`.
    credentials: Option<PathBuf>,
    ca: Option<PathBuf>,
    replicas: Option<u8>,
    ack_wait_s: Option<u64>,
    result_ttl_s: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gateway {
    listen: SocketAddr,
    health_listen: Option<SocketAddr>,
    public_url: Option<String>,
    tenants: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ar {
    #[serde(default)]
    devices: Vec<u16>,
    #[serde(default)]
    srt_urls: Vec<String>,
    /// Of `srt_urls`, where they are to be started.
    server: Option<ArServer>,
    slots_max: Option<u16>,
    admission: Option<AdmissionName>,
    delay_ms: Option<u64>,
    #[serde(default)]
    no_prior_cache: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum AdmissionName {
    Continuous,
    Batched,
}

/// One on each device.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Denoisers {
    devices: Vec<u16>,
}

/// How a process is kept to its devices: the variable by which it sees only them, and what it then calls the first.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pin {
    variable: String,
    device: String,
    dtype: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Start {
    /// Workers that load a model at once.
    loading_max: usize,
    /// One that loads for longer keeps the others waiting no more.
    loading_s: u64,
}

impl Default for Start {
    fn default() -> Self {
        Self {
            loading_max: 2,
            loading_s: 600,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Stop {
    /// What the gateway has let in may take this long; the workers go on meanwhile.
    drain_s: u64,
}

impl Default for Stop {
    fn default() -> Self {
        Self { drain_s: 60 }
    }
}

/// Reads the file at `path` into the command line, and what the command line has no flags for.
pub(crate) fn read(path: &Path, args: &UpArgs) -> Result<(UpArgs, Site), Failure> {
    let unusable = |text: String| Failure::Unusable(format!("--fleet {}: {text}", path.display()));
    let size = fs::metadata(path)
        .map_err(|error| unusable(error.to_string()))?
        .len();
    if size > FILE_BYTES_MAX {
        return Err(unusable(format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    let text = fs::read_to_string(path).map_err(|error| unusable(error.to_string()))?;
    // Whole paths: units are read elsewhere.
    let whole = path
        .canonicalize()
        .map_err(|error| unusable(error.to_string()))?;
    let folder = whole.parent().unwrap_or(Path::new("/"));
    parse(&text, folder, args).map_err(unusable)
}

fn parse(text: &str, folder: &Path, args: &UpArgs) -> Result<(UpArgs, Site), String> {
    let file: FleetFile = toml::from_str(text).map_err(|error| {
        // Its own text shows the line, which may be a broker's with its password.
        let place = Place::of(text, error.span().map_or(0, |span| span.start));
        format!("{place}: {}", without_values(error.message()))
    })?;
    check::check(&file)?;
    if args.nats_server.is_some() && !file.broker.urls.is_empty() {
        return Err("--nats-server starts a broker, and `broker.urls` has some".to_owned());
    }
    let site = site(&file, folder);
    let args = merge(file, folder, args)?;
    Ok((args, site))
}

fn pinned(file: &FleetFile, name: String, devices: &[u16]) -> Pinned {
    let environment = file.pin.as_ref().map(|pin| {
        let devices: Vec<_> = devices.iter().map(u16::to_string).collect();
        (pin.variable.clone(), devices.join(","))
    });
    Pinned {
        name,
        environment: environment.into_iter().collect(),
    }
}

fn site(file: &FleetFile, folder: &Path) -> Site {
    // The devices of an SRT server are that one's own.
    let ar_devices = match file.engine {
        EngineName::Srt => &[],
        EngineName::Native | EngineName::Replay => &file.ar.devices[..],
    };
    let ar_batcher = match ar_devices {
        [] => Pinned::nowhere(AR_BATCHER.to_owned()),
        devices => pinned(file, AR_BATCHER.to_owned(), devices),
    };
    let denoiser = |device: &u16| pinned(file, format!("denoiser-{device}"), &[*device]);
    Site {
        servers: server::servers(file, folder),
        ar_batcher,
        denoisers: file.denoisers.devices.iter().map(denoiser).collect(),
        credentials: file
            .broker
            .credentials
            .as_ref()
            .map(|path| folder.join(path)),
        ca: file.broker.ca.as_ref().map(|path| folder.join(path)),
        replicas: file.broker.replicas.unwrap_or(1),
        gateway_health: file.gateway.health_listen,
        public_url: file.gateway.public_url.clone(),
        limits: Limits {
            loading_max: file.start.loading_max,
            loading_time_max: Duration::from_secs(file.start.loading_s),
            // Others have had its place for as long as it was meant to need: it needs no third time.
            loading_hang: Some(Duration::from_secs(2 * file.start.loading_s)),
            drain: Duration::from_secs(file.stop.drain_s),
            start: StartRule::OneOfEach,
        },
    }
}

fn merge(file: FleetFile, folder: &Path, args: &UpArgs) -> Result<UpArgs, String> {
    let prefix: Prefix = file
        .prefix
        .parse()
        .map_err(|error| format!("`prefix`: {error}"))?;
    let count = u16::try_from(file.denoisers.devices.len()).map_err(|error| error.to_string())?;
    let mut args = args.clone();
    args.engine = match file.engine {
        EngineName::Native => Engine::Native,
        EngineName::Srt => Engine::Srt,
        EngineName::Replay => Engine::Replay,
    };
    // Paths start at the file, wherever the command is called.
    args.model = file.model.map(|path| folder.join(path));
    args.replay.times = file.times.map(|path| folder.join(path));
    args.replay.time_scale = file.time_scale.unwrap_or(1.0);
    args.replay.faults = file.faults.map(|path| folder.join(path));
    args.admin_key_file = file.admin_key_file.map(|path| folder.join(path));
    args.tenants = file.gateway.tenants.map(|path| folder.join(path));
    args.srt_urls = file.ar.srt_urls;
    args.ar_slots_max = file.ar.slots_max;
    args.admission = file.ar.admission.map(|admission| match admission {
        AdmissionName::Continuous => Admission::Continuous,
        AdmissionName::Batched => Admission::Batched,
    });
    args.ar_delay_ms = file.ar.delay_ms;
    args.no_prior_cache = file.ar.no_prior_cache;
    args.denoisers = count;
    args.listen = file.gateway.listen;
    args.nats_urls = file.broker.urls;
    args.prefix = prefix;
    args.times.ack_wait_s = file.broker.ack_wait_s;
    args.times.result_ttl_s = file.broker.result_ttl_s;
    if let Some(pin) = file.pin
        && file.engine != EngineName::Replay
    {
        (args.device, args.dtype) = (Some(pin.device), pin.dtype);
    }
    Ok(args)
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
