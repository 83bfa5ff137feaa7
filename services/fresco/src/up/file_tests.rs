//! What a fleet file may say, and what it makes of it.

use super::*;

fn args() -> UpArgs {
    UpArgs::of_fleet(Path::new("f")).expect("flags of ours")
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file that is right, to make wrong.
const RIGHT: &str = r#"
engine = "replay"
times = "../times/ascend.json"
[gateway]
listen = "127.0.0.1:8080"
[ar]
devices = [0, 1]
[denoisers]
devices = [2, 3]
"#;

#[test]
fn the_layouts_that_we_give_put_one_denoiser_on_each_device() {
    let table = [
        ("npu-16.toml", "ASCEND_RT_VISIBLE_DEVICES", None, 2..16),
        ("gpu-8.toml", "CUDA_VISIBLE_DEVICES", Some("0"), 1..8),
    ];
    for (name, variable, ar, devices) in table {
        let path = repository().join("infra/fleet").join(name);
        let (args, site) = read(&path, &args()).expect("a good file");
        let pinned = |name: String, devices: String| Pinned {
            name,
            environment: vec![(variable.to_owned(), devices)],
        };
        let denoisers =
            devices.map(|device| pinned(format!("denoiser-{device}"), device.to_string()));
        assert_eq!(site.denoisers, denoisers.collect::<Vec<_>>(), "{name}");
        let ar_batcher = match ar {
            Some(devices) => pinned("ar-batcher".to_owned(), devices.to_owned()),
            None => Pinned::nowhere("ar-batcher".to_owned()),
        };
        assert_eq!(site.ar_batcher, ar_batcher, "{name}");
        assert_eq!(usize::from(args.denoisers), site.denoisers.len());
        assert!(args.device.is_some() && args.model.is_some(), "{name}");
    }
}

#[test]
fn paths_start_at_the_file_and_times_are_the_files() {
    let (flags, site) = parse(RIGHT, Path::new("/etc/fresco"), &args()).expect("a good file");
    assert_eq!(
        flags.replay.times,
        Some("/etc/fresco/../times/ascend.json".into())
    );
    assert_eq!((flags.denoisers, flags.device), (2, None));
    assert_eq!(site.limits.drain, Duration::from_secs(60));
    let secured = format!(
        "{RIGHT}[broker]\nurls = [\"tls://n1:4222\"]\ncredentials = \"keys\"\nca = \"ca.pem\"\n"
    );
    let (_, site) = parse(&secured, Path::new("/etc/fresco"), &args()).expect("a good file");
    let access = site.access("denoiser");
    assert_eq!(
        access.credentials,
        Some("/etc/fresco/keys/denoiser.nk".into())
    );
    assert_eq!(access.ca, Some("/etc/fresco/ca.pem".into()));
}

#[test]
fn a_mistake_is_told_by_its_name() {
    let table = [
        ("devices = [2, 3]", "devices = [1, 3]", "device 1"),
        ("devices = [2, 3]", "devices = [2, 2]", "device 2"),
        ("devices = [2, 3]", "devices = []", "denoisers.devices"),
        (
            "devices = [2, 3]",
            "devices = [2, 3]\n[start]\nloading_max = 0",
            "loading_max",
        ),
        (
            "devices = [2, 3]",
            "devices = [2, 3]\n[broker]\nca = \"x\"",
            "broker.urls",
        ),
        (
            "devices = [2, 3]",
            "devices = [2, 3]\n[broker]\nreplicas = 2",
            "broker.replicas",
        ),
        ("devices = [2, 3]", "devices = [2, 3]\ncolour = 1", "colour"),
        ("engine = \"replay\"", "engine = \"torch\"", "torch"),
        ("engine = \"replay\"", "engine = \"native\"", "times"),
        (
            "engine = \"replay\"",
            "engine = \"replay\"\nmodel = \"m\"",
            "model",
        ),
        (
            "engine = \"replay\"",
            "engine = \"replay\"\ntime_scale = 0.0",
            "time_scale",
        ),
        (
            "engine = \"replay\"",
            "engine = \"replay\"\nprefix = \"A\"",
            "prefix",
        ),
        (
            "devices = [0, 1]",
            "devices = [0, 1]\nsrt_urls = [\"http://h:1\"]",
            "srt_urls",
        ),
        ("listen = \"127.0.0.1:8080\"", "", "listen"),
    ];
    for (right, wrong, name) in table {
        let text = RIGHT.replacen(right, wrong, 1);
        assert_ne!(text, RIGHT, "{right}");
        let error = parse(&text, Path::new(""), &args()).err();
        assert!(
            error.as_ref().is_some_and(|error| error.contains(name)),
            "{wrong}: {error:?}"
        );
    }
}
