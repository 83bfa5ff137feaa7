//! The broker's unit, beside the configuration that it starts with.

use std::{fs, process::Command};

use integration::root;
use tempfile::TempDir;

/// The value behind `name` and `sign`, as text.
fn setting<'a>(text: &'a str, name: &str, sign: char) -> &'a str {
    let mut lines = text.lines().filter_map(|line| line.split_once(sign));
    let value = lines.find(|(key, _)| key.trim() == name);
    value.unwrap_or_else(|| panic!("no {name}")).1.trim()
}

#[test]
fn the_brokers_unit_brings_it_back_and_lets_it_hand_over_before_it_stops() {
    let nats = root().join("infra/nats");
    let unit = fs::read_to_string(nats.join("nats-server.service")).unwrap();
    let common = fs::read_to_string(nats.join("common.conf")).unwrap();
    assert_eq!(setting(&unit, "Restart", '='), "always");
    // Lame duck mode, and as long as it takes.
    assert_eq!(setting(&unit, "KillSignal", '='), "SIGUSR2");
    let takes = ["lame_duck_duration", "lame_duck_grace_period"].map(|name| {
        let value = setting(&common, name, ':').trim_matches('"');
        value.strip_suffix('s').unwrap().parse::<u64>().unwrap()
    });
    let given: u64 = setting(&unit, "TimeoutStopSec", '=').parse().unwrap();
    assert!(given > takes.iter().sum(), "{given} s for {takes:?}");
    let store = format!("/var/lib/{}", setting(&unit, "StateDirectory", '='));
    assert!(setting(&unit, "Environment", '=').ends_with(&format!("FRESCO_NATS_STORE={store}")));

    // What systemd says of it, where there is one; a program and a user that are there.
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("nats-server.service");
    let unit = unit.replace("/usr/local/bin/nats-server", "/bin/sh");
    fs::write(&file, unit.replace("User=nats", "User=root")).unwrap();
    let mut analyze = Command::new("systemd-analyze");
    if let Ok(said) = analyze.args(["verify", "--man=no"]).arg(&file).output() {
        // It also reads the units of the host, and says what it thinks of them.
        let text = String::from_utf8_lossy(&said.stderr);
        let ours = text.lines().any(|line| line.contains("nats-server"));
        assert!(said.status.success() && !ours, "{text}");
    }
}
