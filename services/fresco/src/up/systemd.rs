//! `fresco fleet systemd`: the units of a fleet file, for a machine whose processes systemd starts, restarts and stops. The same
//! programs with the same flags as `fresco up --fleet`, so that one file says what runs.
//!
//! Each unit has a user of its own, whom systemd makes when it starts and takes away when it has stopped (`DynamicUser`). What
//! only one process may know is handed to it as a credential: a process that is taken over reads neither the memory nor the
//! credentials of another one, because it is somebody else's. One user for all would be simpler, and has all of them for whoever
//! has one; a fixed user a role would have to be made on each machine, and would still be that of fourteen denoisers.

use std::{
    ffi::{OsStr, OsString},
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use service::exit::Failure;

use super::{
    file,
    fleet::{self, GatewayPlace, Surroundings},
    run::ChildSpec,
    site::Site,
    supervisor::Layer,
};
use crate::{
    args::{FleetSystemdArgs, UpArgs},
    terminal,
};

/// Where the gateway answers probes, unless the file says.
const HEALTH_PORT: u16 = 8081;

/// The credential of the broker's system account, which not every machine has to have.
const SYSTEM_CREDENTIAL: &str = "system.nk";

/// What the operator's key is called where a unit finds it.
const ADMIN_KEY: &str = "admin.key";

/// The same of the tenants.
const TENANTS: &str = "tenants.toml";

/// Who may use Ascend's devices: the group of their driver, unless it was installed with another one.
const ASCEND: (&str, &str) = ("ASCEND_RT_VISIBLE_DEVICES", "HwHiAiUser");

/// Who may use others'. A machine with devices has udev, which makes both.
const DEVICE_GROUPS: &str = "video render";

/// From the end of its grace period to SIGKILL.
const STOP_S: u64 = 3;

/// Writes the units.
pub(crate) fn run(args: &FleetSystemdArgs) -> Result<(), Failure> {
    let unusable =
        |text: &str| Failure::Unusable(format!("--fleet {}: {text}", args.fleet.display()));
    let up = UpArgs::of_fleet(&args.fleet).map_err(|error| Failure::unusable(&error))?;
    let (up, site) = file::read(&args.fleet, &up)?;
    if up.nats_urls.is_empty() {
        return Err(unusable(
            "units need `broker.urls`: systemd starts no broker for them, infra/nats has one",
        ));
    }
    if site.gateway.is_some() && up.listen.port() == 0 {
        return Err(unusable(
            "`gateway.listen` has port 0: nobody would know where it is",
        ));
    }
    fs::create_dir_all(&args.out).map_err(|error| Failure::failed(&error))?;
    for (name, text) in units(args, &up, &site) {
        let path = args.out.join(name);
        fs::write(&path, text).map_err(|error| {
            Failure::Failed(format!("cannot write {}: {error}", path.display()))
        })?;
        terminal::say(path.display());
    }
    Ok(())
}

/// File names and texts. Pure.
fn units(args: &FleetSystemdArgs, up: &UpArgs, site: &Site) -> Vec<(String, String)> {
    let health = SocketAddr::from(([127, 0, 0, 1], HEALTH_PORT));
    let surroundings = Surroundings {
        programs: args.programs.clone(),
        nats_urls: up.nats_urls.clone(),
        gateway: site.gateway.as_ref().map(|gateway| GatewayPlace {
            listen: up.listen,
            health: gateway.health.unwrap_or(health),
        }),
    };
    let mut children = fleet::services(up, site, &surroundings);
    children.push(watcher(up, site, &surroundings));
    let file = |name: &str| format!("fresco-{name}.service");
    let names: Vec<_> = children.iter().map(|child| file(&child.name)).collect();
    let mut units = vec![("fresco.target".to_owned(), target(&names))];
    let secrets = Secrets {
        folder: site.credentials.as_deref(),
        files: [
            (ADMIN_KEY, up.admin_key_file.as_deref()),
            (TENANTS, up.tenants.as_deref()),
        ],
    };
    let texts = children.iter().map(|child| {
        // Units stop in the inverse order: who takes requests before those who work on them, who calls a server before that,
        // the broker last.
        let mut after = vec![
            "network-online.target".to_owned(),
            "nats-server.service".to_owned(),
        ];
        let needs = |other: &&ChildSpec| match child.layer {
            Layer::Front => other.layer != Layer::Front,
            Layer::Sole => other.layer == Layer::Server,
            Layer::Broker | Layer::Server | Layer::Service => false,
        };
        let needed = children.iter().filter(needs);
        after.extend(needed.map(|other| file(&other.name)));
        let mut text = head(&child.name, &after);
        for (key, value) in settings(child, args, site, &secrets) {
            writeln!(text, "{key}={value}").expect("a String takes every text");
        }
        text.push_str("\n[Install]\nWantedBy=fresco.target\n");
        (file(&child.name), text)
    });
    units.extend(texts);
    units
}

/// Keeps the streams, and gives back what the dead held: under `fresco up` that is `fresco up`.
fn watcher(up: &UpArgs, site: &Site, surroundings: &Surroundings) -> ChildSpec {
    let urls = up.nats_urls.join(",");
    let prefix = up.prefix.to_string();
    let mut flags: Vec<OsString> = ["watch", "--nats-url", &urls, "--prefix", &prefix]
        .map(Into::into)
        .into();
    flags.extend(fleet::access_flags(site.access("watcher")));
    // Without its credential the system account tells nobody who is gone: what the dead held waits for its ack deadline.
    if let Some(file) = site.access("system").credentials {
        flags.extend(["--system-url", &urls, "--system-credentials"].map(Into::into));
        flags.push(file.into());
    }
    let options = up.times.options(site.replicas);
    let replicas = options.replicas.map(u64::from);
    for (flag, value) in [
        ("--replicas", replicas),
        ("--ack-wait-s", Some(options.ack_wait.as_secs())),
        ("--result-ttl-s", Some(options.result_ttl.as_secs())),
    ] {
        let Some(value) = value else {
            continue;
        };
        flags.extend([flag.into(), value.to_string().into()]);
    }
    ChildSpec {
        name: "watch".to_owned(),
        layer: Layer::Service,
        program: surroundings.programs.join("fresco"),
        arguments: flags,
        environment: Vec::new(),
    }
}

fn target(services: &[String]) -> String {
    format!(
        "# By `fresco fleet systemd`.\n\
         [Unit]\nDescription=Fresco on this machine\nWants={}\n\n\
         [Install]\nWantedBy=multi-user.target\n",
        services.join(" ")
    )
}

/// Of a unit, until what runs.
fn head(name: &str, after: &[String]) -> String {
    format!(
        "# By `fresco fleet systemd`.\n\
         [Unit]\nDescription=Fresco {name}\nPartOf=fresco.target\nAfter={}\nWants=network-online.target\n\
         # It is started again for ever, however often it dies.\nStartLimitIntervalSec=0\n\n\
         [Service]\nType=exec\n",
        after.join(" "),
    )
}

/// What runs, as whom, with what.
fn settings(
    child: &ChildSpec,
    args: &FleetSystemdArgs,
    site: &Site,
    secrets: &Secrets<'_>,
) -> Vec<(&'static str, String)> {
    let mut lines = vec![("DynamicUser", "yes".to_owned())];
    let mut line = |key, value: &str| lines.push((key, value.to_owned()));
    if let Some(groups) = device_groups(child) {
        line("SupplementaryGroups", groups);
    }
    // A connection a client that waits: a gateway lets 10,000 outputs in, and the usual limit is 1,024.
    line("LimitNOFILE", "65536");
    // For what all of them take from there: the collector of traces, what to log.
    line("EnvironmentFile", "-/etc/fresco/fresco.env");
    for (name, value) in environment(child, args) {
        line("Environment", &quoted(&format!("{name}={value}")));
    }
    if child.layer == Layer::Server {
        // It compiles kernels and keeps them in its home folder, of which units see none. Nobody else of ours keeps a file.
        line("CacheDirectory", &format!("fresco-{}", child.name));
        line("Environment", &format!("HOME=%C/fresco-{}", child.name));
    }
    for (key, value) in secrets.lines(child) {
        line(key, &value);
    }
    if let Some(devices) = cuda_devices(child) {
        line("ExecStartPre", &device_files(devices));
    }
    line("ExecStart", &command(child, secrets));
    line("Restart", "always");
    // To 10 s, where systemd is 254 or newer; older ones ignore those two, and a checkpoint that cannot be loaded is read
    // again after each of these pauses.
    line("RestartSec", "2s");
    line("RestartSteps", "3");
    line("RestartMaxDelaySec", "10s");
    let stop = fleet::grace_s(child.layer, site) + STOP_S;
    line("TimeoutStopSec", &format!("{stop}s"));
    // A dynamic user implies most of it. It stays where a site gives them a fixed one.
    for key in [
        "NoNewPrivileges",
        "PrivateTmp",
        "ProtectHome",
        "ProtectKernelTunables",
        "ProtectControlGroups",
    ] {
        line(key, "yes");
    }
    line("ProtectSystem", "strict");
    lines
}

fn command(child: &ChildSpec, secrets: &Secrets<'_>) -> String {
    let argument = |argument: &OsString| match secrets.name(argument) {
        Some(name) => format!("${{CREDENTIALS_DIRECTORY}}/{name}"),
        None => word(&argument.to_string_lossy()),
    };
    let program = word(&child.program.to_string_lossy());
    let arguments = child.arguments.iter().map(argument);
    let words: Vec<_> = std::iter::once(program).chain(arguments).collect();
    words.join(" ")
}

/// The files that are for some processes only. Systemd reads them as root and hands each process those that it is called with,
/// so that they are root's, and nobody else's to read.
struct Secrets<'a> {
    /// With a credential for each role.
    folder: Option<&'a Path>,
    /// Others, and what a unit calls them.
    files: [(&'static str, Option<&'a Path>); 2],
}

impl Secrets<'_> {
    /// What a unit calls the file that `argument` is, if it is one of them.
    fn name(&self, argument: &OsStr) -> Option<String> {
        let path = Path::new(argument);
        let mut files = self.files.iter();
        if let Some((name, _)) = files.find(|(_, file)| *file == Some(path)) {
            return Some((*name).to_owned());
        }
        let name = path.file_name()?;
        (path.parent() == Some(self.folder?)).then(|| name.to_string_lossy().into_owned())
    }

    /// The lines of a unit that hand them to `child`.
    fn lines(&self, child: &ChildSpec) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        for argument in &child.arguments {
            let Some(name) = self.name(argument) else {
                continue;
            };
            let path = PathBuf::from(argument).display().to_string();
            lines.push((
                "LoadCredential",
                format!("{name}:{}", path.replace('%', "%%")),
            ));
            // What is here where the file is not: `fresco watch` keeps the streams without it too, and says what it lacks.
            if name == SYSTEM_CREDENTIAL {
                lines.push(("SetCredential", format!("{name}:none")));
            }
        }
        lines
    }
}

/// Whose group may use the devices that a process is kept to. Who is kept to none has no variables of its own.
fn device_groups(child: &ChildSpec) -> Option<&'static str> {
    let (ascend, group) = ASCEND;
    let mut names = child.environment.iter().map(|(name, _)| name);
    if child.environment.is_empty() {
        None
    } else if names.any(|name| name == ascend) {
        Some(group)
    } else {
        Some(DEVICE_GROUPS)
    }
}

/// The devices of a process that is kept to NVIDIA's.
fn cuda_devices(child: &ChildSpec) -> Option<&str> {
    let mut environment = child.environment.iter();
    let (_, devices) = environment.find(|(name, _)| name == "CUDA_VISIBLE_DEVICES")?;
    Some(devices)
}

/// On a machine without a screen nobody has made the files of the devices, and CUDA makes them by a program with root's rights,
/// which `NoNewPrivileges` takes from it.
fn device_files(devices: &str) -> String {
    let numbers = devices
        .split(',')
        .map(|device| format!(" -c {}", word(device)));
    format!(
        "-+/usr/bin/nvidia-modprobe -u{}",
        numbers.collect::<String>()
    )
}

/// One word of a command: there systemd would also take `$` for its own.
fn word(text: &str) -> String {
    quoted(&text.replace('$', "$$"))
}

/// Its devices, and where it finds libtorch: not somebody else's program, which has a torch of its own.
fn environment(child: &ChildSpec, args: &FleetSystemdArgs) -> Vec<(String, String)> {
    let libtorch = args.libtorch.as_ref();
    let libtorch = libtorch.filter(|_| child.layer != Layer::Server);
    let libtorch = libtorch.map(|folder| {
        let folder = folder.display().to_string();
        ("LD_LIBRARY_PATH".to_owned(), folder)
    });
    let devices = child.environment.iter().cloned();
    libtorch.into_iter().chain(devices).collect()
}

/// One word of a line: systemd would take `%` for its own.
fn quoted(word: &str) -> String {
    let escaped = word
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('%', "%%");
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=".contains(c);
    if !escaped.is_empty() && escaped.chars().all(plain) {
        escaped
    } else {
        format!("\"{escaped}\"")
    }
}

#[cfg(test)]
mod tests;
