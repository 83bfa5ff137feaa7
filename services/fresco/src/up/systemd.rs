//! `fresco fleet systemd`: the units of a fleet file, for a machine whose processes systemd starts, restarts and stops. The same
//! programs with the same flags as `fresco up --fleet`, so that one file says what runs.

use std::{fmt::Write as _, fs, net::SocketAddr};

use service::exit::Failure;

use super::{
    file,
    fleet::{self, Surroundings},
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

/// From SIGTERM to SIGKILL of a worker, which gives its work back within three.
const STOP_S: u64 = 6;

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
    if up.listen.port() == 0 {
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
        listen: up.listen,
        gateway_health: site.gateway_health.unwrap_or(health),
    };
    let mut children = fleet::services(up, site, &surroundings);
    children.push(watcher(up, site, &surroundings));
    let file = |name: &str| format!("fresco-{name}.service");
    let names: Vec<_> = children.iter().map(|child| file(&child.name)).collect();
    let mut units = vec![("fresco.target".to_owned(), target(&names))];
    units.extend(
        children
            .iter()
            .map(|child| (file(&child.name), unit(child, args, site))),
    );
    units
}

/// Keeps the streams, and gives back what the dead held: under `fresco up` that is `fresco up`.
fn watcher(up: &UpArgs, site: &Site, surroundings: &Surroundings) -> ChildSpec {
    let mut flags = vec![
        "watch".to_owned(),
        "--nats-url".to_owned(),
        up.nats_urls.join(","),
    ];
    flags.extend(["--prefix".to_owned(), up.prefix.to_string()]);
    let access = site.access("watcher");
    for (flag, file) in [
        ("--nats-credentials", access.credentials),
        ("--nats-ca", access.ca),
    ] {
        if let Some(file) = file {
            flags.extend([flag.to_owned(), file.display().to_string()]);
        }
    }
    let options = up.times.options(site.replicas);
    for (flag, value) in [
        ("--replicas", u64::from(options.replicas)),
        ("--ack-wait-s", options.ack_wait.as_secs()),
        ("--result-ttl-s", options.result_ttl.as_secs()),
    ] {
        flags.extend([flag.to_owned(), value.to_string()]);
    }
    ChildSpec {
        name: "watch".to_owned(),
        layer: Layer::Service,
        program: surroundings.programs.join("fresco"),
        arguments: flags.into_iter().map(Into::into).collect(),
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

fn unit(child: &ChildSpec, args: &FleetSystemdArgs, site: &Site) -> String {
    let mut text = format!(
        "# By `fresco fleet systemd`.\n\
         [Unit]\nDescription=Fresco {}\nPartOf=fresco.target\nAfter=network-online.target\nWants=network-online.target\n\
         # It is started again for ever, however often it dies.\nStartLimitIntervalSec=0\n\n\
         [Service]\nType=exec\nUser={}\n",
        child.name, args.user
    );
    let mut line = |key: &str, value: &str| {
        writeln!(text, "{key}={value}").expect("a String takes every text");
    };
    for (name, value) in &child.environment {
        line("Environment", &quoted(&format!("{name}={value}")));
    }
    let arguments = child
        .arguments
        .iter()
        .map(|argument| quoted(&argument.to_string_lossy()));
    let program = quoted(&child.program.to_string_lossy());
    let command: Vec<_> = std::iter::once(program).chain(arguments).collect();
    line("ExecStart", &command.join(" "));
    line("Restart", "always");
    // 0.2 s to 10 s, as `fresco up` does.
    line("RestartSec", "200ms");
    line("RestartSteps", "6");
    line("RestartMaxDelaySec", "10s");
    let stop = match child.layer {
        Layer::Front => site.limits.drain.as_secs() + STOP_S,
        Layer::Broker | Layer::Sole | Layer::Service => STOP_S,
    };
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

/// One word of a line: systemd would take `%` and `$` for its own.
fn quoted(word: &str) -> String {
    let escaped = word
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('%', "%%")
        .replace('$', "$$");
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

    #[test]
    fn each_process_is_a_unit_with_the_flags_it_has_under_up() {
        let units = rendered(
            r#"
engine = "native"
model = "/m"
[pin]
variable = "CUDA_VISIBLE_DEVICES"
device = "cuda:0"
[broker]
urls = ["tls://n1:4222", "tls://n2:4222"]
credentials = "/etc/fresco/keys"
replicas = 3
ack_wait_s = 30
[gateway]
listen = "0.0.0.0:8080"
public_url = "https://h"
[ar]
devices = [0]
[denoisers]
devices = [1, 2]
[stop]
drain_s = 40
"#,
        );
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
        let line = |unit: usize, key: &str| {
            let lines = units[unit].1.lines();
            let mut found = lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
            found.next().unwrap_or_default().to_owned()
        };
        assert_eq!(line(4, "Environment"), "CUDA_VISIBLE_DEVICES=2");
        assert_eq!(
            line(4, "ExecStart"),
            "\"/opt/a b/fresco-denoiser\" --nats-url tls://n1:4222,tls://n2:4222 --nats-credentials /etc/fresco/keys/denoiser.nk \
             --prefix fresco --grace-s 3 --model /m --device cuda:0"
        );
        assert!(line(1, "ExecStart").contains("--grace-s 40 --listen 0.0.0.0:8080 --health-listen 127.0.0.1:8081 --public-url https://h"));
        assert_eq!(
            (
                line(1, "TimeoutStopSec").as_str(),
                line(2, "TimeoutStopSec").as_str()
            ),
            ("46s", "6s")
        );
        assert!(
            line(5, "ExecStart")
                .contains("watcher.nk --replicas 3 --ack-wait-s 30 --result-ttl-s 3600")
        );
        // A model that cannot be loaded is tried again for ever: somebody may repair it.
        assert!(
            units[1..]
                .iter()
                .all(|(_, text)| text.contains("Restart=always"))
        );
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
        for (word, wanted) in table {
            assert_eq!(quoted(word), wanted);
        }
    }
}
