//! Which programs make up a fleet, and with which arguments. Pure.

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use messaging::Access;

use super::{
    run::ChildSpec,
    site::{Pinned, Server, Site},
    supervisor::Layer,
};
use crate::args::{Engine, UpArgs};

/// What services are told to take for an ordered stop: less than the supervisor waits before it kills.
const GRACE_S: u64 = 3;

/// What the broker is called.
pub(crate) const BROKER: &str = "nats-server";

/// What the gateway is called.
pub(crate) const GATEWAY: &str = "gateway";

/// What the AR-batcher is called.
pub(crate) const AR_BATCHER: &str = "ar-batcher";

/// What a denoiser is called, as a role.
pub(crate) const DENOISER: &str = "denoiser";

/// The services' common surroundings.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// Folder of the programs.
    pub(crate) programs: PathBuf,
    /// The broker.
    pub(crate) nats_urls: Vec<String>,
    /// Of the gateway, where this machine has one.
    pub(crate) gateway: Option<GatewayPlace>,
}

/// Where a gateway is, with real ports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GatewayPlace {
    pub(crate) listen: SocketAddr,
    /// Where it answers probes.
    pub(crate) health: SocketAddr,
}

/// The broker's child.
pub(crate) fn broker(program: PathBuf, config: &Path) -> ChildSpec {
    let arguments = vec!["--config".into(), config.into()];
    ChildSpec {
        name: BROKER.to_owned(),
        layer: Layer::Broker,
        program,
        arguments,
        environment: Vec::new(),
    }
}

/// The child of somebody else's server.
fn server(server: &Server) -> ChildSpec {
    ChildSpec {
        name: server.pinned.name.clone(),
        layer: Layer::Server,
        program: server.program.clone(),
        arguments: server.arguments.clone(),
        environment: server.pinned.environment.clone(),
    }
}

/// Who takes requests waits for their answers, for three quarters of this; the rest is for telling that it does not any more.
pub(crate) fn grace_s(layer: Layer, site: &Site) -> u64 {
    let drain = site.limits.drain.as_secs();
    match layer {
        Layer::Front => GRACE_S.max((drain * 4).div_ceil(3)),
        Layer::Broker | Layer::Server | Layer::Sole | Layer::Service => GRACE_S,
    }
}

/// The children of servers and services: the servers first, which load for longest.
pub(crate) fn services(args: &UpArgs, site: &Site, surroundings: &Surroundings) -> Vec<ChildSpec> {
    let service = |pinned: &Pinned, role: &str, own: Vec<OsString>| {
        let (mut arguments, mut environment) = broker_place(&surroundings.nats_urls);
        environment.extend(pinned.environment.iter().cloned());
        arguments.extend(access_flags(site.access(role)));
        let layer = match role {
            GATEWAY => Layer::Front,
            AR_BATCHER => Layer::Sole,
            _ => Layer::Service,
        };
        arguments.extend([
            "--prefix".into(),
            args.prefix.to_string().into(),
            "--grace-s".into(),
            grace_s(layer, site).to_string().into(),
        ]);
        if let Some(file) = &args.admin_key_file {
            arguments.extend(["--admin-key-file".into(), file.into()]);
        }
        arguments.extend(place_flags(pinned));
        arguments.extend(own);
        ChildSpec {
            name: pinned.name.clone(),
            layer,
            program: surroundings.programs.join(format!("fresco-{role}")),
            arguments,
            environment,
        }
    };
    let engine = engine(args);
    let gateway = surroundings.gateway.map(|place| {
        let flags = gateway_flags(args, site, place);
        service(&Pinned::nowhere(GATEWAY.to_owned()), GATEWAY, flags)
    });
    let batcher = site.ar_batcher.as_ref();
    let batcher = batcher.map(|pinned| service(pinned, AR_BATCHER, batcher_flags(args, &engine)));
    let denoisers = site.denoisers.iter();
    let denoisers = denoisers.map(|pinned| service(pinned, DENOISER, engine.clone()));
    let servers = site.servers.iter().map(server);
    servers
        .chain(gateway)
        .chain(batcher)
        .chain(denoisers)
        .collect()
}

/// What is a worker's own on its machine: the name of its device, and where it answers probes.
fn place_flags(pinned: &Pinned) -> Vec<OsString> {
    let probes = pinned.probes.as_ref();
    let advertise = probes.and_then(|probes| probes.advertise);
    let flags = [
        ("--device-label", pinned.label.clone()),
        (
            "--health-listen",
            probes.map(|probes| probes.listen.to_string()),
        ),
        ("--advertise", advertise.map(|ip| ip.to_string())),
    ];
    let given = flags
        .into_iter()
        .filter_map(|(flag, value)| Some([flag.into(), value?.into()]));
    given.flatten().collect()
}

/// What the AR-batcher is told besides.
fn batcher_flags(args: &UpArgs, engine: &[OsString]) -> Vec<OsString> {
    let mut flags = engine.to_vec();
    if args.engine == Engine::Srt {
        let urls = args.srt_urls.join(",");
        flags.extend(["--engine", "srt", "--srt-url", &urls].map(OsString::from));
    }
    if let Some(admission) = args.admission {
        flags.extend(["--admission".into(), admission.to_string().into()]);
    }
    if let Some(slots) = args.ar_slots_max {
        flags.extend(["--slots-max".into(), slots.to_string().into()]);
    }
    if let Some(delay) = args.ar_delay_ms {
        flags.extend(["--batch-delay-ms".into(), delay.to_string().into()]);
    }
    if args.no_prior_cache {
        flags.push("--no-prior-cache".into());
    }
    flags
}

/// What the gateway is told besides.
fn gateway_flags(args: &UpArgs, site: &Site, place: GatewayPlace) -> Vec<OsString> {
    let mut flags: Vec<OsString> = vec![
        "--listen".into(),
        place.listen.to_string().into(),
        "--health-listen".into(),
        place.health.to_string().into(),
    ];
    if let Some(file) = &args.tenants {
        flags.extend(["--tenants".into(), file.into()]);
    }
    let gateway = site.gateway.as_ref();
    if let Some(url) = gateway.and_then(|gateway| gateway.public_url.as_ref()) {
        flags.extend(["--public-url".into(), url.into()]);
    }
    flags
}

/// Where a process finds the broker: a flag, or a variable for an address with credentials in it, because everybody on the
/// machine can read command lines.
fn broker_place(urls: &[String]) -> (Vec<OsString>, Vec<(String, String)>) {
    let all = urls.join(",");
    if all.contains('@') {
        (Vec::new(), vec![("FRESCO_NATS_URL".to_owned(), all)])
    } else {
        (vec!["--nats-url".into(), all.into()], Vec::new())
    }
}

/// As whom a process comes to the broker.
pub(crate) fn access_flags(access: Access) -> Vec<OsString> {
    let files = [
        ("--nats-credentials", access.credentials),
        ("--nats-ca", access.ca),
    ];
    let given = files
        .into_iter()
        .filter_map(|(flag, file)| Some([flag.into(), file?.into()]));
    given.flatten().collect()
}

/// What the workers run: a model, which is the engine that they have by themselves, or a replay.
fn engine(args: &UpArgs) -> Vec<OsString> {
    let mut flags: Vec<OsString> = Vec::new();
    let mut flag = |name: &str, value: Option<OsString>| {
        if let Some(value) = value {
            flags.extend([name.into(), value]);
        }
    };
    let file = |file: &Option<PathBuf>| file.clone().map(PathBuf::into_os_string);
    match args.engine {
        Engine::Native | Engine::Srt => {
            flag("--model", file(&args.model));
            flag("--device", args.device.clone().map(OsString::from));
            flag("--dtype", args.dtype.clone().map(OsString::from));
        }
        Engine::Replay => {
            let scale = args.replay.time_scale.to_string();
            flag("--engine", Some("replay".into()));
            flag("--times", file(&args.replay.times));
            flag("--time-scale", Some(scale.into()));
            flag("--faults", file(&args.replay.faults));
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{
        args::{Cli, Command},
        up::site::Probes,
    };

    fn children(flags: &str) -> Vec<String> {
        let cli = Cli::parse_from(format!("fresco up {flags}").split_whitespace());
        let Command::Up(args) = cli.command else {
            panic!("not up: {cli:?}")
        };
        let surroundings = Surroundings {
            programs: "/bin".into(),
            nats_urls: vec!["nats://a:1".to_owned(), "nats://b:2".to_owned()],
            gateway: Some(GatewayPlace {
                listen: SocketAddr::from(([127, 0, 0, 1], 8081)),
                health: SocketAddr::from(([127, 0, 0, 1], 8082)),
            }),
        };
        let line = |child: ChildSpec| {
            let arguments = child.arguments.join(&OsString::from(" "));
            format!(
                "{} = {} {}",
                child.name,
                child.program.display(),
                arguments.to_string_lossy()
            )
        };
        services(&args, &Site::plain(args.denoisers), &surroundings)
            .into_iter()
            .map(line)
            .collect()
    }

    #[test]
    fn a_fleet_is_a_gateway_a_batcher_and_denoisers() {
        let common = "--nats-url nats://a:1,nats://b:2 --prefix fresco --grace-s 3";
        let listens = "--listen 127.0.0.1:8081 --health-listen 127.0.0.1:8082";
        let expected = [
            format!("gateway = /bin/fresco-gateway {common} {listens}"),
            format!("ar-batcher = /bin/fresco-ar-batcher {common} --model /m"),
            format!("denoiser-0 = /bin/fresco-denoiser {common} --model /m"),
            format!("denoiser-1 = /bin/fresco-denoiser {common} --model /m"),
        ];
        assert_eq!(children("--model /m"), expected);
    }

    #[test]
    fn flags_of_the_stages_are_passed_on() {
        let common = "--nats-url nats://a:1,nats://b:2 --prefix x --grace-s 3";
        let listens = "--listen 127.0.0.1:8081 --health-listen 127.0.0.1:8082";
        let expected = [
            format!("gateway = /bin/fresco-gateway {common} {listens}"),
            format!(
                "ar-batcher = /bin/fresco-ar-batcher {common} --model /m --device cuda:1 --dtype bf16 --admission batched --slots-max 8 --batch-delay-ms 20 --no-prior-cache"
            ),
            format!(
                "denoiser-0 = /bin/fresco-denoiser {common} --model /m --device cuda:1 --dtype bf16"
            ),
        ];
        assert_eq!(
            children(
                "--model /m --prefix x --denoisers 1 --device cuda:1 --dtype bf16 --admission batched --ar-slots-max 8 --ar-delay-ms 20 --no-prior-cache"
            ),
            expected
        );
    }

    #[test]
    fn everybody_has_the_operators_key_and_the_gateway_knows_the_tenants() {
        let common =
            "--nats-url nats://a:1,nats://b:2 --prefix fresco --grace-s 3 --admin-key-file /k";
        let listens = "--listen 127.0.0.1:8081 --health-listen 127.0.0.1:8082";
        let expected = [
            format!("gateway = /bin/fresco-gateway {common} {listens} --tenants /t"),
            format!("ar-batcher = /bin/fresco-ar-batcher {common} --model /m"),
            format!("denoiser-0 = /bin/fresco-denoiser {common} --model /m"),
        ];
        let flags = "--model /m --denoisers 1 --admin-key-file /k --tenants /t";
        assert_eq!(children(flags), expected);
    }

    #[test]
    fn srt_servers_are_the_batchers_and_the_model_is_everybodys() {
        let common = "--nats-url nats://a:1,nats://b:2 --prefix fresco --grace-s 3";
        let listens = "--listen 127.0.0.1:8081 --health-listen 127.0.0.1:8082";
        let urls = "http://h:1,http://h:2";
        let expected = [
            format!("gateway = /bin/fresco-gateway {common} {listens}"),
            format!(
                "ar-batcher = /bin/fresco-ar-batcher {common} --model /m --engine srt --srt-url {urls}"
            ),
            format!("denoiser-0 = /bin/fresco-denoiser {common} --model /m"),
        ];
        let flags = "--engine srt --srt-url http://h:1 --srt-url http://h:2 --model /m";
        assert_eq!(children(&format!("--denoisers 1 {flags}")), expected);
    }

    #[test]
    fn a_worker_is_told_the_name_of_its_device_and_where_others_ask_it() {
        let flags = |pinned: &Pinned| place_flags(pinned).join(&OsString::from(" "));
        let nowhere = Pinned::nowhere("denoiser-7".to_owned());
        assert_eq!(flags(&nowhere), "");
        let mut worker = Pinned {
            label: Some("npu:7".to_owned()),
            probes: Some(Probes {
                listen: ([10, 0, 0, 5], 9107).into(),
                advertise: None,
            }),
            ..nowhere
        };
        let told = "--device-label npu:7 --health-listen 10.0.0.5:9107";
        assert_eq!(flags(&worker), told);
        worker.probes = Some(Probes {
            listen: ([0, 0, 0, 0], 9107).into(),
            advertise: Some([10, 0, 0, 5].into()),
        });
        let told = "--device-label npu:7 --health-listen 0.0.0.0:9107 --advertise 10.0.0.5";
        assert_eq!(flags(&worker), told);
    }

    #[test]
    fn an_address_with_credentials_is_in_no_command_line() {
        let place = |url: &str| broker_place(&[url.to_owned(), "nats://h".to_owned()]);
        let (arguments, environment) = place("nats://user:secret@h");
        assert_eq!(arguments.len(), 0);
        let both = "nats://user:secret@h,nats://h".to_owned();
        assert_eq!(environment, [("FRESCO_NATS_URL".to_owned(), both)]);
        let (arguments, environment) = place("nats://h");
        assert_eq!((arguments.len(), environment.len()), (2, 0));
    }

    #[test]
    fn a_replay_is_passed_on_to_the_workers() {
        let common = "--nats-url nats://a:1,nats://b:2 --prefix fresco --grace-s 3";
        let listens = "--listen 127.0.0.1:8081 --health-listen 127.0.0.1:8082";
        let replay = "--engine replay --times /t --time-scale 0.5 --faults /f";
        let expected = [
            format!("gateway = /bin/fresco-gateway {common} {listens}"),
            format!("ar-batcher = /bin/fresco-ar-batcher {common} {replay}"),
            format!("denoiser-0 = /bin/fresco-denoiser {common} {replay}"),
        ];
        assert_eq!(children(&format!("--denoisers 1 {replay}")), expected);
    }
}
