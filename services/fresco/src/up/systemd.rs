//! `fresco fleet systemd`: the units of a fleet file, for a machine whose processes systemd starts, restarts and stops. The same
//! programs with the same flags as `fresco up --fleet`, so that one file says what runs.

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
        (file(&child.name), unit(child, &after, args, site))
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

fn unit(child: &ChildSpec, after: &[String], args: &FleetSystemdArgs, site: &Site) -> String {
    let mut text = format!(
        "# By `fresco fleet systemd`.\n\
         [Unit]\nDescription=Fresco {}\nPartOf=fresco.target\nAfter={}\nWants=network-online.target\n\
         # It is started again for ever, however often it dies.\nStartLimitIntervalSec=0\n\n\
         [Service]\nType=exec\nUser={}\n",
        child.name,
        after.join(" "),
        args.user
    );
    let mut line = |key: &str, value: &str| {
        writeln!(text, "{key}={value}").expect("a String takes every text");
    };
    // A connection a client that waits: a gateway lets 10,000 outputs in, and the usual limit is 1,024.
    line("LimitNOFILE", "65536");
    // For what all of them take from there: the collector of traces, what to log.
    line("EnvironmentFile", "-/etc/fresco/fresco.env");
    for (name, value) in environment(child, args) {
        line("Environment", &quoted(&format!("{name}={value}")));
    }
    if child.layer == Layer::Server {
        // It compiles kernels and keeps them in its home folder, of which units see none.
        line("CacheDirectory", &format!("fresco-{}", child.name));
        line("Environment", &format!("HOME=%C/fresco-{}", child.name));
    }
    for (key, value) in credential_lines(child, site) {
        line(key, &value);
    }
    if let Some(devices) = cuda_devices(child) {
        line("ExecStartPre", &device_files(devices));
    }
    line("ExecStart", &command(child, site));
    line("Restart", "always");
    // To 10 s, where systemd is 254 or newer; older ones ignore those two, and a checkpoint that cannot be loaded is read
    // again after each of these pauses.
    line("RestartSec", "2s");
    line("RestartSteps", "3");
    line("RestartMaxDelaySec", "10s");
    let stop = fleet::grace_s(child.layer, site) + STOP_S;
    line("TimeoutStopSec", &format!("{stop}s"));
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
    text.push_str("\n[Install]\nWantedBy=fresco.target\n");
    text
}

fn command(child: &ChildSpec, site: &Site) -> String {
    let argument = |argument: &OsString| match credential(argument, site) {
        Some(name) => format!("${{CREDENTIALS_DIRECTORY}}/{name}"),
        None => word(&argument.to_string_lossy()),
    };
    let program = word(&child.program.to_string_lossy());
    let arguments = child.arguments.iter().map(argument);
    let words: Vec<_> = std::iter::once(program).chain(arguments).collect();
    words.join(" ")
}

/// The name of a file with a credential, if that is what `argument` is.
fn credential(argument: &OsStr, site: &Site) -> Option<String> {
    let (path, folder) = (Path::new(argument), site.credentials.as_deref()?);
    let name = path.file_name().filter(|_| path.parent() == Some(folder))?;
    Some(name.to_string_lossy().into_owned())
}

/// A process gets its role's credentials from systemd, which reads them as root, so that the folder is not for the user whom all
/// roles share. That stops mistakes, and no process that is taken over: what another one of that user was handed is there under
/// its `/proc/PID/root`.
fn credential_lines(child: &ChildSpec, site: &Site) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    for argument in &child.arguments {
        let Some(name) = credential(argument, site) else {
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
mod tests {
    use std::path::PathBuf;

    use clap::Parser as _;

    use super::*;
    use crate::args::{Cli, Command, FleetCommand};

    fn rendered(text: &str) -> Vec<(String, String)> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("f.toml");
        fs::write(&path, text).expect("a writable folder");
        let cli = Cli::parse_from(
            [
                "fresco",
                "fleet",
                "systemd",
                "--out",
                "/o",
                "--programs",
                "/opt/a b",
                "--libtorch",
                "/opt/libtorch/lib",
                "--fleet",
            ]
            .into_iter()
            .map(PathBuf::from)
            .chain([path.clone()]),
        );
        let Command::Fleet(FleetCommand::Systemd(args)) = cli.command else {
            panic!("not systemd")
        };
        let up = UpArgs::of_fleet(&path).expect("flags of ours");
        let (up, site) = file::read(&path, &up).expect("a good file");
        units(&args, &up, &site)
    }

    fn line<'a>(unit: &'a str, key: &str) -> &'a str {
        let mut lines = unit.lines();
        let found = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        found.unwrap_or_default()
    }

    const FLEET: &str = r#"
engine = "native"
model = "/m"
[pin]
variable = "CUDA_VISIBLE_DEVICES"
device = "cuda:0"
[broker]
urls = ["tls://n1:4222", "tls://n2:4222"]
credentials = "/etc/fresco/keys"
replicas = 3
[gateway]
listen = "0.0.0.0:8080"
public_url = "https://h"
[ar]
devices = [0]
[denoisers]
devices = [1, 2]
[stop]
drain_s = 40
"#;

    #[test]
    fn each_process_is_a_unit_with_the_flags_it_has_under_up() {
        let units = rendered(FLEET);
        let names: Vec<_> = units.iter().map(|(name, _)| name.as_str()).collect();
        let services = [
            "fresco-gateway.service",
            "fresco-ar-batcher.service",
            "fresco-denoiser-1.service",
            "fresco-denoiser-2.service",
            "fresco-watch.service",
        ];
        assert_eq!(names[0], "fresco.target");
        assert_eq!(names[1..], services);
        assert!(
            units[0]
                .1
                .contains(&format!("Wants={}\n", services.join(" ")))
        );
        let line = |unit: usize, key: &str| line(&units[unit].1, key);
        assert_eq!(line(4, "Environment"), "LD_LIBRARY_PATH=/opt/libtorch/lib");
        assert!(
            units[4]
                .1
                .contains("\nEnvironment=CUDA_VISIBLE_DEVICES=2\n")
        );
        // Stopped the other way round: first the gateway, with the workers at work until it has answered.
        assert_eq!(
            line(1, "After"),
            format!(
                "network-online.target nats-server.service {}",
                services[1..].join(" ")
            )
        );
        assert_eq!(
            line(2, "After"),
            "network-online.target nats-server.service"
        );
        assert_eq!(
            line(4, "ExecStart"),
            "\"/opt/a b/fresco-denoiser\" --nats-url tls://n1:4222,tls://n2:4222 --nats-credentials ${CREDENTIALS_DIRECTORY}/denoiser.nk \
             --prefix fresco --grace-s 3 --device-label cuda:2 --model /m --device cuda:0"
        );
        assert!(line(1, "ExecStart").contains("--grace-s 54 --listen 0.0.0.0:8080 --health-listen 127.0.0.1:8081 --public-url https://h"));
        assert_eq!(
            (line(1, "TimeoutStopSec"), line(2, "TimeoutStopSec")),
            ("57s", "6s")
        );
        assert!(
            line(5, "ExecStart")
                .contains("watcher.nk --system-url tls://n1:4222,tls://n2:4222 --system-credentials ${CREDENTIALS_DIRECTORY}/system.nk --replicas 3 --ack-wait-s 30 --result-ttl-s 3600")
        );
        // A model that cannot be loaded is tried again for ever: somebody may repair it.
        assert!(
            units[1..]
                .iter()
                .all(|(_, text)| text.contains("Restart=always"))
        );
    }

    /// The values of `key` in the unit called `name`.
    fn values<'a>(units: &'a [(String, String)], name: &str, key: &str) -> Vec<&'a str> {
        let unit = units.iter().find(|(unit, _)| unit == name);
        let lines = unit.map(|(_, text)| text.lines()).into_iter().flatten();
        lines
            .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .collect()
    }

    #[test]
    fn a_unit_names_the_credentials_of_its_role_and_no_others() {
        let units = rendered(FLEET);
        let roles = [
            ("gateway", &["gateway.nk"][..]),
            ("ar-batcher", &["ar-batcher.nk"]),
            ("denoiser-1", &["denoiser.nk"]),
            ("watch", &["watcher.nk", "system.nk"]),
        ];
        for (name, files) in roles {
            let unit = format!("fresco-{name}.service");
            let wanted: Vec<_> = files
                .iter()
                .map(|file| format!("{file}:/etc/fresco/keys/{file}"))
                .collect();
            assert_eq!(values(&units, &unit, "LoadCredential"), wanted);
            let command = values(&units, &unit, "ExecStart");
            assert!(!command[0].contains("/etc/fresco/keys"), "{command:?}");
        }
        // A machine without it has its streams kept too.
        let watch = values(&units, "fresco-watch.service", "SetCredential");
        assert_eq!(watch, ["system.nk:none"]);
        let open = rendered(&FLEET.replace("credentials = \"/etc/fresco/keys\"\n", ""));
        assert!(open.iter().all(|(_, text)| !text.contains("Credential")));
    }

    #[test]
    fn a_worker_that_dies_reads_its_checkpoint_no_oftener_than_every_two_seconds() {
        let units = rendered(FLEET);
        for (name, _) in &units[1..] {
            assert_eq!(values(&units, name, "RestartSec"), ["2s"], "{name}");
        }
    }

    #[test]
    fn files_of_cuda_devices_are_made_before_rights_are_given_up() {
        let units = rendered(FLEET);
        let made = values(&units, "fresco-denoiser-2.service", "ExecStartPre");
        assert_eq!(made, ["-+/usr/bin/nvidia-modprobe -u -c 2"]);
        let order = values(&units, "fresco-denoiser-2.service", "Environment");
        assert!(order.contains(&"CUDA_DEVICE_ORDER=PCI_BUS_ID"), "{order:?}");
        let npus = rendered(&FLEET.replace("CUDA_VISIBLE", "ASCEND_RT_VISIBLE"));
        let others = [
            values(&units, "fresco-gateway.service", "ExecStartPre"),
            values(&npus, "fresco-denoiser-2.service", "ExecStartPre"),
        ];
        assert_eq!(others.concat(), [""; 0]);
    }

    #[test]
    fn a_machine_that_only_paints_has_denoisers_and_who_keeps_the_streams() {
        let gateway = "[gateway]\nlisten = \"0.0.0.0:8080\"\npublic_url = \"https://h\"\n";
        let painter = FLEET
            .replace(gateway, "")
            .replace("[ar]\ndevices = [0]\n", "");
        let units = rendered(&painter);
        let names: Vec<_> = units.iter().map(|(name, _)| name.as_str()).collect();
        let wanted = [
            "fresco.target",
            "fresco-denoiser-1.service",
            "fresco-denoiser-2.service",
            "fresco-watch.service",
        ];
        assert_eq!(names, wanted);
    }

    #[test]
    fn an_srt_server_is_a_unit_that_stops_after_the_batcher_and_has_its_own_torch() {
        let server = "[ar]\nsrt_urls = [\"http://127.0.0.1:30020\"]\n\
                      [ar.server]\ncommand = [\"/opt/srt\", \"--port\", \"{port}\", \"--model\", \"{model}/ar\"]\n";
        let fleet = FLEET.replace("[ar]\n", server).replace("native", "srt");
        let fleet = fleet.replace("devices = [0]", "");
        let units = rendered(&fleet.replace("[ar]\n", "[ar]\ndevices = [0, 3]\n"));
        let unit = |name: &str| {
            let found = units.iter().find(|(unit, _)| unit == name);
            found.map(|(_, text)| text.as_str()).expect("it is there")
        };
        let srt = unit("fresco-srt-0.service");
        assert_eq!(
            line(srt, "ExecStart"),
            "/opt/srt --port 30020 --model /m/ar"
        );
        assert!(
            srt.contains("\nEnvironment=CUDA_VISIBLE_DEVICES=0,3\n"),
            "{srt}"
        );
        assert!(!srt.contains("LD_LIBRARY_PATH"), "{srt}");
        assert!(
            srt.contains("\nEnvironment=HOME=%C/fresco-srt-0\n"),
            "{srt}"
        );
        let after = |name: &str| line(unit(name), "After").contains("fresco-srt-0.service");
        assert!(after("fresco-ar-batcher.service") && after("fresco-gateway.service"));
        assert!(!after("fresco-denoiser-1.service") && !after("fresco-srt-0.service"));
        assert!(line(unit("fresco.target"), "Wants").contains("fresco-srt-0.service"));
    }

    #[test]
    fn words_are_taken_as_they_are() {
        let table = [
            ("a-b.c", "a-b.c"),
            ("", "\"\""),
            ("50%", "\"50%%\""),
            ("$HOME", "\"$$HOME\""),
            ("a \"b\"", "\"a \\\"b\\\"\""),
        ];
        for (text, wanted) in table {
            assert_eq!(word(text), wanted);
        }
        assert_eq!(quoted("$HOME"), "\"$HOME\"", "no command: `$` is itself");
    }
}
