//! The declarative file of a fleet, as `fresco up --fleet` and `fresco fleet systemd` read it: what runs, on which devices,
//! how it starts and stops. Read and checked as a whole, so that a mistake in its last line is told before the first process
//! starts. It knows no process.

mod check;
mod probes;
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

use self::probes::Probes;
use super::{
    fleet::AR_BATCHER,
    site::{GatewaySite, Pinned, Site},
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
    gateway: Option<Gateway>,
    ar: Option<Ar>,
    denoisers: Option<Denoisers>,
    pin: Option<Pin>,
    probes: Option<Probes>,
    #[serde(default)]
    start: Start,
    #[serde(default)]
    stop: Stop,
}

impl FleetFile {
    /// Devices that have a denoiser.
    fn denoisers(&self) -> &[u16] {
        let denoisers = self.denoisers.as_ref();
        denoisers.map_or(&[], |denoisers| &denoisers.devices)
    }

    /// Whether anybody in it does: a gateway alone loads nothing, whatever others run.
    fn loads_a_model(&self) -> bool {
        self.engine != EngineName::Replay && (self.ar.is_some() || self.denoisers.is_some())
    }

    fn ar_devices(&self) -> &[u16] {
        self.ar.as_ref().map_or(&[], |ar| &ar.devices)
    }
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
    if args.url_file.is_some() && file.gateway.is_none() {
        return Err("--url-file waits for a gateway's URL, and `gateway` is missing".to_owned());
    }
    let site = site(&file, folder);
    let args = merge(file, folder, args)?;
    Ok((args, site))
}

/// CUDA counts the fastest device first unless it is told to count as everybody else does, by their places.
const CUDA_ORDER: (&str, &str, &str) = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PCI_BUS_ID");

fn pinned(file: &FleetFile, name: String, devices: &[u16]) -> Pinned {
    let devices: Vec<_> = devices.iter().map(u16::to_string).collect();
    let devices = devices.join(",");
    // A replay calls nothing by a device's name.
    let kind = file
        .pin
        .as_ref()
        .filter(|_| file.engine != EngineName::Replay);
    let kind = kind.map_or("replay", |pin| {
        pin.device
            .split_once(':')
            .map_or(pin.device.as_str(), |(kind, _)| kind)
    });
    let label = Some(format!("{kind}:{devices}"));
    let mut environment = Vec::new();
    if let Some(pin) = &file.pin {
        let (cuda, order, by_place) = CUDA_ORDER;
        if pin.variable == cuda {
            environment.push((order.to_owned(), by_place.to_owned()));
        }
        environment.push((pin.variable.clone(), devices));
    }
    Pinned {
        name,
        environment,
        label,
        probes: None,
    }
}

fn ar_batcher(file: &FleetFile) -> Pinned {
    let name = AR_BATCHER.to_owned();
    match (file.engine, file.ar_devices()) {
        // The devices of an SRT server are that one's own.
        (EngineName::Srt, _) | (_, []) => Pinned::nowhere(name),
        (EngineName::Native | EngineName::Replay, devices) => pinned(file, name, devices),
    }
}

/// The workers, each with an address of its own for probes where the file has them.
fn workers(file: &FleetFile) -> (Option<Pinned>, Vec<Pinned>) {
    let mut ar_batcher = file.ar.as_ref().map(|_| ar_batcher(file));
    let denoiser = |device: &u16| pinned(file, format!("denoiser-{device}"), &[*device]);
    let mut denoisers: Vec<_> = file.denoisers().iter().map(denoiser).collect();
    if let Some(probes) = file.probes {
        let all = ar_batcher.iter_mut().chain(&mut denoisers);
        for (place, worker) in (0..).zip(all) {
            worker.probes = Some(probes.of(place));
        }
    }
    (ar_batcher, denoisers)
}

fn site(file: &FleetFile, folder: &Path) -> Site {
    let (ar_batcher, denoisers) = workers(file);
    let in_folder = |path: &Option<PathBuf>| path.as_ref().map(|path| folder.join(path));
    let gateway = file.gateway.as_ref();
    Site {
        gateway: gateway.map(|gateway| GatewaySite {
            health: gateway.health_listen,
            public_url: gateway.public_url.clone(),
        }),
        servers: server::servers(file, folder),
        ar_batcher,
        denoisers,
        credentials: in_folder(&file.broker.credentials),
        ca: in_folder(&file.broker.ca),
        replicas: file.broker.replicas,
        limits: limits(file),
    }
}

fn limits(file: &FleetFile) -> Limits {
    let loading = Duration::from_secs(file.start.loading_s);
    Limits {
        loading_max: file.start.loading_max,
        loading_time_max: loading,
        // Others have had its place for as long as it was meant to need: it needs no third time.
        loading_hang: Some(2 * loading),
        drain: Duration::from_secs(file.stop.drain_s),
        start: StartRule::OneOfEach,
    }
}

fn merge(file: FleetFile, folder: &Path, args: &UpArgs) -> Result<UpArgs, String> {
    let prefix: Prefix = file
        .prefix
        .parse()
        .map_err(|error| format!("`prefix`: {error}"))?;
    let count = u16::try_from(file.denoisers().len()).map_err(|error| error.to_string())?;
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
    if let Some(gateway) = file.gateway {
        args.tenants = gateway.tenants.map(|path| folder.join(path));
        args.listen = gateway.listen;
    }
    if let Some(ar) = file.ar {
        args.srt_urls = ar.srt_urls;
        args.ar_slots_max = ar.slots_max;
        args.admission = ar.admission.map(|admission| match admission {
            AdmissionName::Continuous => Admission::Continuous,
            AdmissionName::Batched => Admission::Batched,
        });
        args.ar_delay_ms = ar.delay_ms;
        args.no_prior_cache = ar.no_prior_cache;
    }
    args.denoisers = count;
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
mod tests;
