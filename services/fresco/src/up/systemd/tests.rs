//! The text of the units.

use std::{os::unix::fs::PermissionsExt as _, process};

use clap::Parser as _;

use super::*;
use crate::args::{Cli, Command, FleetCommand};

fn rendered(text: &str) -> Vec<(String, String)> {
    let (args, up, site) = read(text, Path::new("/opt/a b"));
    units(&args, &up, &site)
}

/// What a file with this text says, and the command line, with the programs in such a folder.
fn read(text: &str, programs: &Path) -> (FleetSystemdArgs, UpArgs, Site) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("f.toml");
    fs::write(&path, text).expect("a writable folder");
    let words = ["fresco", "fleet", "systemd", "--out", "/o"].map(Path::new);
    let files = ["--libtorch", "/opt/libtorch/lib", "--programs"].map(Path::new);
    let files = files
        .into_iter()
        .chain([programs, Path::new("--fleet"), &path]);
    let cli = Cli::parse_from(words.into_iter().chain(files));
    let Command::Fleet(FleetCommand::Systemd(args)) = cli.command else {
        panic!("not systemd")
    };
    let up = UpArgs::of_fleet(&path).expect("flags of ours");
    let (up, site) = file::read(&path, &up).expect("a good file");
    (args, up, site)
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

/// [`FLEET`] with an SRT server on two devices.
fn with_a_server(program: &str) -> String {
    let server = format!(
        "[ar]\ndevices = [0, 3]\nsrt_urls = [\"http://127.0.0.1:30020\"]\n[ar.server]\n\
         command = [\"{program}\", \"--port\", \"{{port}}\", \"--model\", \"{{model}}/ar\"]\n"
    );
    let fleet = FLEET.replace("[ar]\ndevices = [0]\n", &server);
    fleet.replace("native", "srt")
}

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
    assert!(line(1, "ExecStart").contains(
        "--grace-s 54 --listen 0.0.0.0:8080 --health-listen 127.0.0.1:8081 --public-url https://h"
    ));
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
fn what_else_is_secret_is_handed_over_too() {
    let gateway = "[gateway]\ntenants = \"/etc/fresco/t.toml\"\n";
    let fleet = FLEET.replace("[gateway]\n", gateway);
    let units = rendered(&format!("admin_key_file = \"/etc/fresco/a key\"\n{fleet}"));
    let table = [
        (
            "gateway",
            &[
                "admin.key:/etc/fresco/a key",
                "tenants.toml:/etc/fresco/t.toml",
            ][..],
        ),
        ("denoiser-2", &["admin.key:/etc/fresco/a key"]),
        ("watch", &[]),
    ];
    for (name, wanted) in table {
        let unit = format!("fresco-{name}.service");
        let mut files = values(&units, &unit, "LoadCredential");
        files.retain(|file| !file.contains(".nk:"));
        assert_eq!(files, wanted, "{name}");
        let command = values(&units, &unit, "ExecStart")[0];
        assert!(!command.contains("/etc/fresco"), "{command}");
        for file in wanted {
            let name = file.split(':').next().expect("it has a name");
            let given = format!(" ${{CREDENTIALS_DIRECTORY}}/{name}");
            assert!(command.contains(&given), "{command}");
        }
    }
}

#[test]
fn no_process_has_the_user_of_another() {
    let units = rendered(&with_a_server("/opt/srt"));
    for (name, text) in &units[1..] {
        assert_eq!(values(&units, name, "DynamicUser"), ["yes"], "{name}");
        // Two of one name would be one.
        let named = ["\nUser=", "\nGroup="].map(|key| text.contains(key));
        assert_eq!(named, [false; 2], "{text}");
    }
}

#[test]
fn who_is_kept_to_devices_may_use_them() {
    let gpus = rendered(&with_a_server("/opt/srt"));
    let npus = rendered(&with_a_server("/opt/srt").replace("CUDA", "ASCEND_RT"));
    let table = [
        ("denoiser-1", "video render", "HwHiAiUser"),
        ("srt-0", "video render", "HwHiAiUser"),
        ("gateway", "", ""),
        // Its devices are the server's.
        ("ar-batcher", "", ""),
        ("watch", "", ""),
    ];
    for (name, gpu, npu) in table {
        let unit = format!("fresco-{name}.service");
        let groups =
            [&gpus, &npus].map(|units| values(units, &unit, "SupplementaryGroups").concat());
        assert_eq!(groups, [gpu, npu], "{name}");
    }
}

#[test]
fn systemd_understands_the_units() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let services = ["gateway", "ar-batcher", "denoiser"].map(|name| format!("fresco-{name}"));
    let programs = services.iter().map(String::as_str).chain(["fresco", "srt"]);
    for program in programs {
        let file = folder.path().join(program);
        fs::write(&file, "").expect("a writable folder");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("our file");
    }
    let server = folder.path().join("srt").display().to_string();
    let (args, up, site) = read(&with_a_server(&server), folder.path());
    let mut analyze = process::Command::new("systemd-analyze");
    analyze.args(["verify", "--man=no"]);
    for (name, text) in units(&args, &up, &site) {
        let file = folder.path().join(name);
        fs::write(&file, text).expect("a writable folder");
        analyze.arg(file);
    }
    // Where there is one.
    if let Ok(said) = analyze.output() {
        // It also reads the units of the host, and says what it thinks of them.
        let text = String::from_utf8_lossy(&said.stderr);
        let newer = ["RestartSteps", "RestartMaxDelaySec"];
        let mut ours = text.lines().filter(|line| line.contains("fresco"));
        let ours = ours.find(|line| !newer.iter().any(|key| line.contains(key)));
        assert!(said.status.success() && ours.is_none(), "{text}");
    }
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
    let units = rendered(&with_a_server("/opt/srt"));
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
