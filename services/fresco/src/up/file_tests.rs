//! What a fleet file may say, and what it makes of it.

use std::collections::BTreeSet;

use clap::{Arg, CommandFactory as _, Parser as _};

use super::*;
use crate::{args::Cli, up::site::Server};

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
    let npus = (&[][..], "ASCEND_RT_VISIBLE_DEVICES", "npu");
    // By their places, as `nvidia-smi` counts: a mixed machine's fastest would be number 0 otherwise.
    let by_place = [("CUDA_DEVICE_ORDER", "PCI_BUS_ID")];
    let gpus = (&by_place[..], "CUDA_VISIBLE_DEVICES", "cuda");
    let table = [
        ("npu-16.toml", npus, Some(""), 2..16),
        ("gpu-8.toml", gpus, Some("0"), 1..8),
        ("paint-8.toml", gpus, None, 0..8),
    ];
    for (name, (order, variable, kind), ar, devices) in table {
        let path = repository().join("infra/fleet").join(name);
        let (args, site) = read(&path, &args()).expect("a good file");
        let pinned = |name: String, devices: String| {
            let order = order.iter().copied();
            let environment = order.chain([(variable, devices.as_str())]);
            let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
            Pinned {
                name,
                environment: environment.map(owned).collect(),
                label: Some(format!("{kind}:{devices}")),
                probes: None,
            }
        };
        let wanted = devices.map(|device| pinned(format!("denoiser-{device}"), device.to_string()));
        // One that calls an SRT server has no device, and one is on another machine.
        let ar_batcher = ar.map(|devices| match devices {
            "" => Pinned::nowhere(AR_BATCHER.to_owned()),
            devices => pinned(AR_BATCHER.to_owned(), devices.to_owned()),
        });
        let probed = |worker: Pinned| Pinned {
            probes: None,
            ..worker
        };
        let found = site.denoisers.iter().cloned().map(probed);
        assert_eq!(
            found.collect::<Vec<_>>(),
            wanted.collect::<Vec<_>>(),
            "{name}"
        );
        assert_eq!(site.ar_batcher, ar_batcher, "{name}");
        assert_eq!(site.gateway.is_some(), ar.is_some(), "{name}");
        let servers = site.servers.into_iter().map(|server| server.pinned);
        let server = || pinned("srt-0".to_owned(), "0,1".to_owned());
        let wanted = (ar == Some("")).then(server);
        assert_eq!(
            servers.collect::<Vec<_>>(),
            wanted.into_iter().collect::<Vec<_>>()
        );
        assert_eq!(usize::from(args.denoisers), site.denoisers.len());
        assert!(args.device.is_some() && args.model.is_some(), "{name}");
    }
}

#[test]
fn a_replay_tells_its_devices_by_their_numbers_too() {
    let (_, site) = parse(RIGHT, Path::new(""), &args()).expect("a good file");
    let workers = site.ar_batcher.iter().chain(&site.denoisers);
    let labels: Vec<_> = workers.filter_map(|worker| worker.label.clone()).collect();
    assert_eq!(labels, ["replay:0,1", "replay:2", "replay:3"]);
}

#[test]
fn each_worker_answers_probes_on_a_port_of_its_own() {
    let probes = "[probes]\nlisten = \"0.0.0.0\"\nfrom_port = 9101\nadvertise = \"10.0.0.5\"\n";
    let (_, site) =
        parse(&format!("{RIGHT}{probes}"), Path::new(""), &args()).expect("a good file");
    let workers = site.ar_batcher.iter().chain(&site.denoisers);
    let places: Vec<_> = workers.filter_map(|worker| worker.probes).collect();
    let place = |port| crate::up::site::Probes {
        listen: ([0, 0, 0, 0], port).into(),
        advertise: Some([10, 0, 0, 5].into()),
    };
    assert_eq!(places, [place(9101), place(9102), place(9103)]);
}

#[test]
fn ports_of_probes_are_where_others_call_and_nobody_elses() {
    let table = [
        ("\"10.0.0.5\"\nfrom_port = 9101", None),
        ("\"127.0.0.1\"\nfrom_port = 65533", None),
        ("\"127.0.0.1\"\nfrom_port = 65534", Some("probes.from_port")),
        ("\"127.0.0.1\"\nfrom_port = 0", Some("probes.from_port")),
        ("\"127.0.0.1\"\nfrom_port = 8078", Some("port 8080")),
        ("\"0.0.0.0\"\nfrom_port = 9101", Some("probes.advertise")),
        (
            "\"::\"\nfrom_port = 9101\nadvertise = \"::\"",
            Some("probes.advertise"),
        ),
        (
            "\"127.0.0.1\"\nfrom_port = 9101\nadvertise = \"10.0.0.5\"",
            Some("probes.listen"),
        ),
    ];
    for (probes, refused) in table {
        let text = format!("{RIGHT}[probes]\nlisten = {probes}\n");
        let error = parse(&text, Path::new(""), &args()).err();
        match refused {
            None => assert_eq!(error, None, "{probes}"),
            Some(name) => assert!(
                error.as_ref().is_some_and(|error| error.contains(name)),
                "{probes}: {error:?}"
            ),
        }
    }
}

#[test]
fn a_table_may_be_missing_where_a_broker_joins_this_machine_with_others() {
    let gateway = "[gateway]\nlisten = \"127.0.0.1:8080\"\n";
    let ar = "[ar]\ndevices = [0, 1]\n";
    let denoisers = "[denoisers]\ndevices = [2, 3]\n";
    let broker = "[broker]\nurls = [\"nats://h\"]\n";
    // What is there, and whether it may be all.
    let table = [
        (vec![broker, denoisers], None),
        (vec![broker, gateway], None),
        (vec![broker, ar], None),
        (vec![broker, gateway, denoisers], None),
        (vec![gateway, denoisers], Some("`ar`")),
        (vec![ar, denoisers], Some("`gateway`")),
        (vec![gateway, ar], Some("`denoisers`")),
        (vec![broker], Some("all missing")),
    ];
    for (tables, refused) in table {
        let text = format!("engine = \"replay\"\ntimes = \"t\"\n{}", tables.concat());
        let read = parse(&text, Path::new(""), &args());
        let error = read.as_ref().err();
        assert_eq!(error.is_some(), refused.is_some(), "{tables:?} {error:?}");
        match (read, refused) {
            (Ok((_, site)), _) => {
                assert_eq!(site.gateway.is_some(), tables.contains(&gateway));
                assert_eq!(site.ar_batcher.is_some(), tables.contains(&ar));
                assert_eq!(!site.denoisers.is_empty(), tables.contains(&denoisers));
            }
            (Err(error), Some(name)) => assert!(error.contains(name), "{error}"),
            (Err(error), None) => panic!("{error}"),
        }
    }
    // Who only takes requests in loads nothing, whatever the others run.
    for engine in ["native", "srt"] {
        let text = format!("engine = \"{engine}\"\n{broker}{gateway}");
        let read = parse(&text, Path::new(""), &args());
        assert!(read.is_ok(), "{:?}", read.err());
    }
    let painter = format!("engine = \"replay\"\ntimes = \"t\"\n{broker}{denoisers}");
    let waits = UpArgs {
        url_file: Some("url".into()),
        ..args()
    };
    let error = parse(&painter, Path::new(""), &waits).err();
    assert!(error.is_some_and(|error| error.contains("--url-file")));
}

#[test]
fn a_model_has_the_devices_that_the_file_says_and_no_others() {
    let native = |changed: &str| {
        let right = RIGHT
            .replace("engine = \"replay\"", "engine = \"native\"\nmodel = \"m\"")
            .replace("times = \"../times/ascend.json\"\n", "")
            .replace("devices = [0, 1]", "devices = [0]");
        let pin = "[pin]\nvariable = \"CUDA_VISIBLE_DEVICES\"\ndevice = \"cuda:0\"\n";
        let text = match changed {
            "no pin" => right,
            "no device" => format!("{right}{pin}").replace("devices = [0]", ""),
            "two devices" => format!("{right}{pin}").replace("devices = [0]", "devices = [0, 1]"),
            "faults" => format!("faults = \"f\"\n{right}{pin}"),
            _ => format!("{right}{pin}"),
        };
        parse(&text, Path::new(""), &args()).map(drop)
    };
    assert_eq!(native("nothing"), Ok(()));
    for (changed, name) in [
        ("no pin", "`pin`"),
        ("no device", "`ar.devices`"),
        ("two devices", "`ar.devices`"),
        ("faults", "`faults`"),
    ] {
        let error = native(changed).err();
        assert!(
            error.as_ref().is_some_and(|error| error.contains(name)),
            "{changed}: {error:?}"
        );
    }
}

/// A file that starts its SRT servers, to make wrong.
const SERVED: &str = r#"
engine = "srt"
model = "m"
[pin]
variable = "CUDA_VISIBLE_DEVICES"
device = "cuda:0"
[gateway]
listen = "127.0.0.1:8080"
[ar]
devices = [0, 1, 6, 7]
srt_urls = ["http://127.0.0.1:30020", "http://127.0.0.1:30021/"]
[ar.server]
command = ["bin/srt", "--port={port}", "--model", "{model}/ar", "--json", "{}"]
[denoisers]
devices = [2, 3]
"#;

#[test]
fn each_srt_url_is_a_server_with_its_share_of_the_devices() {
    let (flags, site) = parse(SERVED, Path::new("/f"), &args()).expect("a good file");
    let server = |number: u16, devices: &str| Server {
        pinned: Pinned {
            name: format!("srt-{number}"),
            environment: [
                ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
                ("CUDA_VISIBLE_DEVICES", devices),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
            label: Some(format!("cuda:{devices}")),
            probes: None,
        },
        url: format!("http://127.0.0.1:{}", 30020 + number),
        program: "/f/bin/srt".into(),
        arguments: [
            &format!("--port={}", 30020 + number),
            "--model",
            "/f/m/ar",
            "--json",
            "{}",
        ]
        .map(Into::into)
        .into(),
    };
    assert_eq!(site.servers, [server(0, "0,1"), server(1, "6,7")]);
    assert_eq!(flags.srt_urls.len(), 2);
    let nowhere = Pinned::nowhere(AR_BATCHER.to_owned());
    assert_eq!(site.ar_batcher, Some(nowhere));
    let by_name = SERVED.replace("bin/srt", "srt");
    let (_, site) = parse(&by_name, Path::new("/f"), &args()).expect("a good file");
    assert_eq!(site.servers[0].program, Path::new("srt"));
}

#[test]
fn a_server_that_cannot_be_started_where_it_is_called_is_refused() {
    let one = "\"http://127.0.0.1:30020\", ";
    let table = [
        ("--port={port}", "--port=30020", "{port}"),
        ("\"bin/srt\"", "\"\"", "ar.server.command"),
        ("30021/", "30020", "ar.srt_urls"),
        ("30021/", "8080", "port 8080"),
        (
            "http://127.0.0.1:30020",
            "http://:p@127.0.0.1:30020",
            "credentials",
        ),
        ("127.0.0.1:30021", "10.0.0.1:30021", "ar.srt_urls"),
        ("[0, 1, 6, 7]", "[0, 1, 6]", "ar.devices"),
        ("[0, 1, 6, 7]", "[]", "ar.devices"),
        ("command", "program", "line 13, column 1: unknown field"),
        ("engine = \"srt\"", "engine = \"native\"", "ar."),
    ];
    for (right, wrong, name) in table {
        let text = SERVED.replacen(right, wrong, 1);
        assert_ne!(text, SERVED, "{right}");
        let error = parse(&text, Path::new(""), &args()).err();
        assert!(
            error.as_ref().is_some_and(|error| error.contains(name)),
            "{wrong}: {error:?}"
        );
    }
    let shared = SERVED.replace(one, "");
    parse(&shared, Path::new(""), &args()).expect("one server has all of them");
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
    let hang = site.limits.loading_hang;
    assert_eq!(
        hang,
        Some(Duration::from_secs(1200)),
        "twice as long as it may"
    );
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

/// What is right, what is made of it, and what the refusal has to name.
const MISTAKES: &[(&str, &str, &str)] = &[
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
        "devices = [2, 3]\n[stop]\ndrain_s = 9223372036854775807",
        "stop.drain_s",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[start]\nloading_s = 0",
        "start.loading_s",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[broker]\nack_wait_s = 0",
        "broker.ack_wait_s",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[broker]\nresult_ttl_s = 86401",
        "broker.result_ttl_s",
    ),
    (
        "devices = [0, 1]",
        "devices = [0, 1]\nslots_max = 129",
        "ar.slots_max",
    ),
    (
        "devices = [0, 1]",
        "devices = [0, 1]\ndelay_ms = 60001",
        "ar.delay_ms",
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
    (
        "devices = [2, 3]",
        "devices = [2, 3]\ncolour = 1",
        "line 10, column 1: unknown field, expected `devices`",
    ),
    (
        "engine = \"replay\"",
        "engine = \"torch\"",
        "line 2, column 10: unknown variant, expected one of `native`",
    ),
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
    (
        "listen = \"127.0.0.1:8080\"",
        "listen = \"127.0.0.1:8080\"\nhealth_listen = \"[::]:8081\"",
        "gateway.health_listen",
    ),
    (
        "listen = \"127.0.0.1:8080\"",
        "listen = \"127.0.0.1:8080\"\npublic_url = \"http://0.0.0.0\"",
        "gateway.public_url",
    ),
    (
        "devices = [2, 3]",
        "devices = [2, 3]\n[broker]\nurls = [\"nats://u:secret@h\"]",
        "broker.credentials",
    ),
    ("listen = \"127.0.0.1:8080\"", "", "listen"),
];

#[test]
fn a_mistake_is_told_by_its_name() {
    for (right, wrong, name) in MISTAKES {
        let text = RIGHT.replacen(right, wrong, 1);
        assert_ne!(text, RIGHT, "{right}");
        let error = parse(&text, Path::new(""), &args()).err();
        assert!(
            error.as_ref().is_some_and(|error| error.contains(name)),
            "{wrong}: {error:?}"
        );
    }
}

#[test]
fn a_line_that_cannot_be_read_is_not_shown() {
    for broker in [
        "urls = [\"nats://u:secret@h\"",
        "urls = nats://u:secret@h",
        "urls = \"nats://u:secret@h\"",
        "urls = [[\"nats://u:secret@h\"]]",
        "url = \"nats://u:secret@h\"",
        "\"nats://u:secret@h\" = 1",
        "replicas = \"nats://u:secret@h\"",
    ] {
        let text = format!("{RIGHT}[broker]\n{broker}\n");
        let error = parse(&text, Path::new(""), &args()).expect_err(broker);
        assert!(!error.contains("secret"), "{error}");
        assert!(error.starts_with("line 1"), "{error}");
    }
}

/// What the file takes in this table, as the refusal of a key that it does not take lists them.
fn keys(table: &str) -> Vec<String> {
    let text = match table {
        "" => "unknown = 1\n".to_owned(),
        table => format!("[{table}]\nunknown = 1\n"),
    };
    let error = toml::from_str::<FleetFile>(&text).err();
    let error = error.expect("no such key").to_string();
    let (_, known) = error
        .split_once("expected ")
        .expect("the keys that there are");
    let known = known.split('`').skip(1).step_by(2);
    known.map(str::to_owned).collect()
}

/// All that the file takes.
fn all_keys() -> Vec<String> {
    let tables = [
        "broker",
        "gateway",
        "ar",
        "ar.server",
        "denoisers",
        "pin",
        "probes",
        "start",
        "stop",
    ];
    let mut taken: Vec<String> = keys("");
    for table in tables {
        let keys = keys(table).into_iter();
        taken.extend(keys.map(|key| format!("{table}.{key}")));
    }
    taken.retain(|key| !tables.contains(&key.as_str()));
    taken.sort_unstable();
    taken
}

/// Flags of `fresco up` with a value, and the key that stands for each in the file.
const BY_KEY: [(&str, &str); 20] = [
    ("--engine=native", "engine"),
    ("--model=m", "model"),
    ("--srt-url=http://h:1", "ar.srt_urls"),
    ("--times=t", "times"),
    ("--time-scale=2", "time_scale"),
    ("--faults=f", "faults"),
    ("--denoisers=2", "denoisers.devices"),
    ("--listen=127.0.0.1:0", "gateway.listen"),
    ("--nats-url=nats://h:1", "broker.urls"),
    ("--prefix=p", "prefix"),
    ("--ack-wait-s=15", "broker.ack_wait_s"),
    ("--result-ttl-s=60", "broker.result_ttl_s"),
    ("--device=cpu", "pin.device"),
    ("--dtype=f32", "pin.dtype"),
    ("--admission=batched", "ar.admission"),
    ("--ar-slots-max=8", "ar.slots_max"),
    ("--ar-delay-ms=20", "ar.delay_ms"),
    ("--no-prior-cache", "ar.no_prior_cache"),
    ("--admin-key-file=k", "admin_key_file"),
    ("--tenants=t", "gateway.tenants"),
];

/// Of the command, not of the fleet: they go with `--fleet`.
const BESIDE: [&str; 8] = [
    "--fleet",
    "--data",
    "--nats-server",
    "--url-file",
    "--bin-dir",
    "--cache",
    "--log",
    "--log-format",
];

#[test]
fn every_flag_of_a_fleet_is_a_key_of_its_file_and_goes_with_no_file() {
    let mut command = Cli::command();
    command.build();
    let up = command.find_subcommand("up").expect("there is one");
    let flags = up.get_arguments().filter_map(Arg::get_long);
    let flags = flags
        .filter(|flag| *flag != "help")
        .map(|flag| format!("--{flag}"));
    let named = BY_KEY.iter().filter_map(|(flag, _)| flag.split('=').next());
    let named = named.chain(BESIDE).map(str::to_owned);
    assert_eq!(flags.collect::<BTreeSet<_>>(), named.collect());
    let keys = all_keys();
    for (flag, key) in BY_KEY {
        assert!(keys.iter().any(|taken| taken == key), "{key}");
        let line = ["fresco", "up", "--fleet", "f", flag];
        assert!(Cli::try_parse_from(line).is_err(), "{flag} beside a file");
    }
}

#[test]
fn what_the_ar_batcher_is_told_is_in_the_file() {
    let text = RIGHT.replace(
        "devices = [0, 1]",
        "devices = [0, 1]\ndelay_ms = 35\nno_prior_cache = true",
    );
    let (told, _) = parse(&text, Path::new(""), &args()).expect("a good file");
    assert_eq!((told.ar_delay_ms, told.no_prior_cache), (Some(35), true));
    let (plain, _) = parse(RIGHT, Path::new(""), &args()).expect("a good file");
    assert_eq!((plain.ar_delay_ms, plain.no_prior_cache), (None, false));
}

#[test]
fn the_page_on_configuration_has_every_key_and_no_other() {
    let page = std::fs::read_to_string(repository().join("docs/configuration.md"));
    let page = page.expect("the page is there");
    let (_, page) = page.split_once("## The file of a fleet").expect("its part");
    let (page, _) = page.split_once("## The programs").expect("the next part");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let mut documented: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
    documented.sort_unstable();
    assert_eq!(documented, all_keys());
}
