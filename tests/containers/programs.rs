//! What runs in a container: with its flags, its configuration, and until when.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use integration::{binary, root};
use tempfile::TempDir;

use crate::files::{Build, Dockerfile, Service, composes, docker, services};

fn succeeds(program: &Path, flags: &[&str]) {
    let output = Command::new(program).args(flags).output();
    let output = output.unwrap_or_else(|error| panic!("{}: {error}", program.display()));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(
        output.status.success(),
        "{} {flags:?}:\n{said}",
        program.display()
    );
}

#[test]
fn every_program_takes_the_flags_it_is_started_with() {
    let (dockerfile, mut seen) = (Dockerfile::read(), BTreeSet::new());
    for (name, service) in services() {
        let Some(Build { target }) = &service.build else {
            continue;
        };
        if !service.entrypoint.is_empty() {
            continue; // not the image's own program
        }
        let mut words = dockerfile.list(target, "ENTRYPOINT");
        words.retain(|word| word != "enter");
        words.extend(service.command.iter().cloned());
        let program = words.remove(0);
        let names = words.iter().filter(|word| word.starts_with("--"));
        let mut names: Vec<_> = names.map(|word| word.split('=').next().unwrap()).collect();
        names.sort_unstable();
        assert!(
            names.windows(2).all(|two| two[0] != two[1]),
            "{name}: {names:?}"
        );
        // What comes before it is read first. nats-server knows no such thing: the next test gives it its file.
        words.push("--help".to_owned());
        let flags: Vec<&str> = words.iter().map(String::as_str).collect();
        match program.as_str() {
            "nats-server" => continue,
            "prometheus" => succeeds(Path::new(&program), &flags),
            ours => succeeds(&binary(ours), &flags),
        }
        seen.insert(name);
    }
    let wanted = ["ar-batcher", "denoiser", "gateway", "prometheus", "watch"];
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
}

#[test]
fn nats_and_prometheus_read_their_configurations() {
    let nats = docker().join("nats.conf");
    let nats = nats.to_str().unwrap();
    succeeds(Path::new("nats-server"), &["-t", "--config", nats]);
    // Rules lie elsewhere in the container.
    let mounted = "/etc/prometheus/alerts/fresco.yml";
    let alerts = root().join("observability/alerts/fresco.yml");
    let text = fs::read_to_string(docker().join("prometheus.yml")).unwrap();
    assert!(text.contains(mounted));
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("prometheus.yml");
    fs::write(&file, text.replace(mounted, alerts.to_str().unwrap())).unwrap();
    let file = file.to_str().unwrap();
    succeeds(Path::new("promtool"), &["check", "config", file]);
}

/// Compose stops who depends on others before them, and all others at once.
#[test]
fn the_gateway_stops_before_those_who_paint_what_it_let_in_and_the_broker_last() {
    let [compose, _] = composes();
    let on_broker = |service: &Service| service.command.iter().any(|word| word == "--nats-url");
    let others = compose.services.iter().filter(|(_, s)| on_broker(s));
    let mut others: BTreeSet<&str> = others.map(|(name, _)| name.as_str()).collect();
    assert!(others.remove("gateway") && others.len() == 3, "{others:?}");
    let needs = |name: &str| -> BTreeSet<&str> {
        let needs = compose.services[name].depends_on.keys();
        needs.map(String::as_str).collect()
    };
    for name in &others {
        assert_eq!(needs(name), BTreeSet::from(["nats"]), "{name}");
    }
    others.insert("nats");
    assert_eq!(needs("gateway"), others);
}
