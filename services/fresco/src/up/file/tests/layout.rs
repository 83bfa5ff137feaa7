//! Who runs where, with what.

use super::*;

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
        // With what to write where there is a CPU alone.
        ("no pin", "`pin`"),
        ("no pin", "device = \"cpu\""),
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
