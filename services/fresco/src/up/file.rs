//! The declarative file of a fleet, as `fresco up --fleet` and `fresco fleet systemd` read it: what runs, on which devices,
//! how it starts and stops. Read and checked as a whole, so that a mistake in its last line is told before the first process
//! starts. It knows no process.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use protocol::{Prefix, limits::AR_SLOTS_MAX};
use serde::Deserialize;
use service::{
    Admission,
    address::PublicUrl,
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
    slots_max: Option<u16>,
    admission: Option<AdmissionName>,
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
    check(&file)?;
    if args.nats_server.is_some() && !file.broker.urls.is_empty() {
        return Err("--nats-server starts a broker, and `broker.urls` has some".to_owned());
    }
    let site = site(&file, folder);
    let args = merge(file, folder, args)?;
    Ok((args, site))
}

/// What cannot work, by the name it has in the file.
fn check(file: &FleetFile) -> Result<(), String> {
    let replays = file.engine == EngineName::Replay;
    if replays != file.times.is_some() {
        return Err("`times` goes with engine = \"replay\", and only with it".to_owned());
    }
    if replays == file.model.is_some() {
        return Err("`model` goes with every engine but \"replay\"".to_owned());
    }
    if (file.engine == EngineName::Srt) == file.ar.srt_urls.is_empty() {
        return Err("`ar.srt_urls` goes with engine = \"srt\", and only with it".to_owned());
    }
    let scale = file.time_scale.unwrap_or(1.0);
    if !(scale > 0.0 && scale.is_finite()) {
        return Err("`time_scale` is not a number above 0".to_owned());
    }
    if !replays && (file.time_scale.is_some() || file.faults.is_some()) {
        return Err("`time_scale` and `faults` go with engine = \"replay\"".to_owned());
    }
    check_devices(file)?;
    check_addresses(file)?;
    if !matches!(file.broker.replicas, None | Some(1 | 3 | 5)) {
        return Err("`broker.replicas` is not 1, 3 or 5".to_owned());
    }
    check_numbers(file)
}

/// One denoiser a device, and a model where it is meant to be.
fn check_devices(file: &FleetFile) -> Result<(), String> {
    if file.engine != EngineName::Replay && file.pin.is_none() {
        return Err(
            "`pin` is missing: every worker would have the same device, the CPU".to_owned(),
        );
    }
    if file.engine == EngineName::Native && file.ar.devices.len() != 1 {
        return Err("`ar.devices` is not one device: the native engine uses one".to_owned());
    }
    match file.denoisers.devices.len() {
        1..=DENOISERS_MAX => {}
        count => {
            return Err(format!(
                "`denoisers.devices` has {count}, not 1 to {DENOISERS_MAX}"
            ));
        }
    }
    let mut users = BTreeMap::new();
    let ar = file.ar.devices.iter().map(|device| (device, "ar"));
    let denoisers = file
        .denoisers
        .devices
        .iter()
        .map(|device| (device, "denoisers"));
    for (device, user) in ar.chain(denoisers) {
        if let Some(other) = users.insert(device, user) {
            return Err(format!(
                "device {device} is in `{other}.devices` and again in `{user}.devices`"
            ));
        }
    }
    Ok(())
}

/// What processes would refuse, or tell others in vain.
fn check_addresses(file: &FleetFile) -> Result<(), String> {
    let Broker {
        urls,
        credentials,
        ca,
        ..
    } = &file.broker;
    if urls.is_empty() && (credentials.is_some() || ca.is_some()) {
        return Err("`broker.credentials` and `broker.ca` go with `broker.urls`".to_owned());
    }
    // They would be in command lines and units, which everybody on the machine can read.
    if urls.iter().any(|url| url.contains('@')) {
        return Err("`broker.urls` has credentials: `broker.credentials` takes files".to_owned());
    }
    let health = file.gateway.health_listen;
    if let Some(address) = health.filter(|address| address.ip().to_canonical().is_unspecified()) {
        return Err(format!(
            "`gateway.health_listen` {address} is a wildcard, which others would be told: give the address they call"
        ));
    }
    if let Some(url) = &file.gateway.public_url {
        let parsed = url.parse::<PublicUrl>();
        parsed.map_err(|error| format!("`gateway.public_url`: {error}"))?;
    }
    Ok(())
}

/// What flags refuse before anything starts, and what no clock can add up.
fn check_numbers(file: &FleetFile) -> Result<(), String> {
    const DAY_S: u64 = 86_400;
    let (broker, start) = (&file.broker, &file.start);
    let slots_max = file.ar.slots_max.map(u64::from);
    let loading_max = u64::try_from(start.loading_max).ok();
    for (name, value, range) in [
        ("broker.ack_wait_s", broker.ack_wait_s, 1..=3600),
        ("broker.result_ttl_s", broker.result_ttl_s, 1..=DAY_S),
        ("ar.slots_max", slots_max, 1..=AR_SLOTS_MAX.into()),
        (
            "start.loading_max",
            loading_max,
            1..=DENOISERS_MAX as u64 + 1,
        ),
        ("start.loading_s", Some(start.loading_s), 1..=DAY_S),
        ("stop.drain_s", Some(file.stop.drain_s), 0..=DAY_S),
    ] {
        if value.is_some_and(|value| !range.contains(&value)) {
            let (low, high) = (range.start(), range.end());
            return Err(format!("`{name}` is not {low} to {high}"));
        }
    }
    Ok(())
}

fn site(file: &FleetFile, folder: &Path) -> Site {
    let pinned = |name: String, devices: &[u16]| {
        let environment = file.pin.as_ref().map(|pin| {
            let devices: Vec<_> = devices.iter().map(u16::to_string).collect();
            (pin.variable.clone(), devices.join(","))
        });
        Pinned {
            name,
            environment: environment.into_iter().collect(),
        }
    };
    // The devices of an SRT server are that one's own.
    let ar_devices = match file.engine {
        EngineName::Srt => &[],
        EngineName::Native | EngineName::Replay => &file.ar.devices[..],
    };
    let ar_batcher = match ar_devices {
        [] => Pinned::nowhere(AR_BATCHER.to_owned()),
        devices => pinned(AR_BATCHER.to_owned(), devices),
    };
    let denoiser = |device: &u16| pinned(format!("denoiser-{device}"), &[*device]);
    Site {
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
