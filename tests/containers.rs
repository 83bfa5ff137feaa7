//! `docker/` without an engine: the Dockerfile, the compose files and what they mount agree with each other and with the
//! programs. `docker/try.sh` runs them.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use integration::{binary, root};
use serde::Deserialize;
use tempfile::TempDir;

/// The one that brings a deployment up, and the one that is read on top of it.
const FILES: [&str; 2] = ["compose.yaml", "compose.observe.yaml"];

#[derive(Deserialize)]
struct Compose {
    services: BTreeMap<String, Service>,
    volumes: BTreeMap<String, Volume>,
}

#[derive(Deserialize)]
struct Volume {}

/// What is read here of a service; in the second file it may be an addition to one of the first.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Service {
    image: Option<String>,
    build: Option<Build>,
    user: Option<String>,
    read_only: bool,
    cap_drop: Vec<String>,
    cap_add: Vec<String>,
    security_opt: Vec<String>,
    entrypoint: Vec<String>,
    command: Vec<String>,
    environment: BTreeMap<String, String>,
    volumes: Vec<Mount>,
    ports: Vec<String>,
    logging: Option<Logging>,
    pull_policy: Option<String>,
    pids_limit: Option<u32>,
    depends_on: BTreeMap<String, Dependency>,
}

/// A folder or a file of the host, or a volume, and where a container has it.
#[derive(Deserialize)]
#[serde(from = "Written")]
struct Mount {
    /// As it is written, with the variable that chooses it.
    source: String,
    target: String,
    read_only: bool,
    /// Whether the engine makes an empty folder of a source that is not there.
    is_made: bool,
}

/// The two forms that Compose has for it.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Short(String),
    Long {
        source: String,
        target: String,
        #[serde(default)]
        read_only: bool,
        #[serde(default)]
        bind: Bind,
    },
}

#[derive(Deserialize, Default)]
struct Bind {
    create_host_path: Option<bool>,
}

impl From<Written> for Mount {
    fn from(written: Written) -> Self {
        match written {
            Written::Short(text) => {
                let (source, target) = text.rsplit_once(":/").unwrap();
                let inside = target.strip_suffix(":ro");
                Self {
                    source: source.to_owned(),
                    target: format!("/{}", inside.unwrap_or(target)),
                    read_only: inside.is_some(),
                    is_made: true,
                }
            }
            Written::Long {
                source,
                target,
                read_only,
                bind,
            } => Self {
                source,
                target,
                read_only,
                is_made: bind.create_host_path.unwrap_or(true),
            },
        }
    }
}

impl Mount {
    /// Where it is without variables, if it is of this repository.
    fn path(&self) -> Option<PathBuf> {
        let path = self.source.strip_prefix("${MODEL:-");
        let path = path.unwrap_or(&self.source).trim_end_matches('}');
        path.starts_with('.').then(|| docker().join(path))
    }
}

#[derive(Deserialize)]
struct Dependency {}

#[derive(Deserialize)]
struct Build {
    target: String,
}

#[derive(Deserialize)]
struct Logging {
    driver: String,
    options: BTreeMap<String, String>,
}

impl Service {
    /// Files and folders of this repository, and where they are mounted.
    fn mounted(&self) -> impl Iterator<Item = (PathBuf, &Mount)> {
        self.volumes
            .iter()
            .filter_map(|mount| Some((mount.path()?, mount)))
    }

    /// The configurations that it gets.
    fn configurations(&self) -> Vec<String> {
        let files = self.mounted().filter(|(path, _)| path.is_file());
        files
            .map(|(path, _)| fs::read_to_string(path).unwrap())
            .collect()
    }
}

/// Of the Dockerfile: an image that others are made from, or that runs.
#[derive(Default)]
struct Stage {
    from: String,
    lines: Vec<String>,
}

struct Dockerfile(BTreeMap<String, Stage>);

impl Dockerfile {
    fn read() -> Self {
        let text = fs::read_to_string(docker().join("Dockerfile")).unwrap();
        let (mut stages, mut name) = (BTreeMap::<String, Stage>::new(), String::new());
        for line in text.replace("\\\n", " ").lines() {
            if let Some((from, of)) = line
                .strip_prefix("FROM ")
                .and_then(|s| s.split_once(" AS "))
            {
                name = of.to_owned();
                stages.entry(of.to_owned()).or_default().from = from.to_owned();
            } else if let Some(stage) = stages.get_mut(&name) {
                stage.lines.push(line.to_owned());
            }
        }
        Self(stages)
    }

    /// The last `instruction` of the image, its bases included.
    fn last(&self, image: &str, instruction: &str) -> Option<&str> {
        let stage = self.0.get(image)?;
        let own = stage.lines.iter().rev();
        let own = own.filter_map(|line| line.strip_prefix(instruction)?.strip_prefix(' '));
        own.map(str::trim)
            .next()
            .or_else(|| self.last(&stage.from, instruction))
    }

    /// A list as JSON that ends the last `instruction`.
    fn list(&self, image: &str, instruction: &str) -> Vec<String> {
        let text = self.last(image, instruction).unwrap_or("[]");
        serde_json::from_str(&text[text.find('[').unwrap()..]).unwrap()
    }

    fn exposes(&self, image: &str, port: &str) -> bool {
        let ports = self.last(image, "EXPOSE").unwrap_or_default();
        ports.split(' ').any(|exposed| exposed == port)
    }

    /// Where a role answers probes and Prometheus, if it is one.
    fn health_port(&self, image: &str) -> Option<String> {
        let flags = self.list(image, "ENTRYPOINT");
        let at = flags.iter().position(|flag| flag == "--health-listen")?;
        Some(flags[at + 1].rsplit_once(':')?.1.to_owned())
    }
}

fn docker() -> PathBuf {
    root().join("docker")
}

fn composes() -> [Compose; 2] {
    FILES.map(|file| {
        let text = fs::read_to_string(docker().join(file)).unwrap();
        read(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
    })
}

/// With what `<<` brings in.
fn read(text: &str) -> serde_yaml_ng::Result<Compose> {
    let mut whole: serde_yaml_ng::Value = serde_yaml_ng::from_str(text)?;
    // What a merge brings in may have one itself, which the next round sees: hardened into worker into a service.
    for _ in 0..2 {
        whole.apply_merge()?;
    }
    serde_yaml_ng::from_value(whole)
}

/// Every service, or part of one, by its name.
fn services() -> Vec<(String, Service)> {
    composes().into_iter().flat_map(|c| c.services).collect()
}

/// Service → the image of the Dockerfile that it runs.
fn targets() -> BTreeMap<String, String> {
    let services = services().into_iter();
    services
        .filter_map(|(name, service)| Some((name, service.build?.target)))
        .collect()
}

/// `name:port` wherever `text` has one.
fn addresses(text: &str) -> Vec<(&str, &str)> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !".-:".contains(c));
    words
        .filter_map(|word| word.rsplit_once(':'))
        .filter(|(name, port)| {
            name.contains(|c: char| c.is_ascii_alphabetic()) && port.parse::<u16>().is_ok()
        })
        .collect()
}

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
fn no_container_is_root_has_a_capability_or_a_root_folder_it_could_write() {
    let dockerfile = Dockerfile::read();
    let mut seen = 0;
    for (name, service) in services() {
        let Some(image) = &service.image else {
            continue; // an addition to one that was looked at
        };
        seen += 1;
        assert!(service.read_only, "{name}");
        assert_eq!(service.cap_drop, ["ALL"], "{name}");
        assert_eq!(service.security_opt, ["no-new-privileges:true"], "{name}");
        let target = service.build.as_ref().map(|build| &build.target);
        let of_image = target.and_then(|target| dockerfile.last(target, "USER"));
        let user = service.user.as_deref().or(of_image);
        // Gives volumes to who writes there, and ends.
        if name == "volume-owner" {
            assert_eq!(
                (user, &*service.cap_add),
                (Some("0"), &["CHOWN".to_owned()][..])
            );
            assert_eq!(service.entrypoint[0], "chown");
        } else {
            assert!(
                user.is_some_and(|user| user != "0" && user != "root"),
                "{name}: {image}"
            );
            assert!(service.cap_add.is_empty(), "{name}");
        }
    }
    assert!(seen >= 11, "{seen} services");
}

/// Compose asks Docker Hub for an image that is not here, and anybody may own the name there.
#[test]
fn what_is_built_here_is_asked_of_no_registry() {
    let mut built = 0;
    for (name, service) in services() {
        if service.build.is_some() {
            assert_eq!(service.pull_policy.as_deref(), Some("build"), "{name}");
            built += 1;
        }
    }
    assert!(built >= 7, "{built} services");
}

#[test]
fn no_container_fills_the_disk_with_its_log_or_the_host_with_threads() {
    let mut seen = 0;
    for (name, service) in services() {
        if service.image.is_none() {
            continue; // sends its lines elsewhere, see below
        }
        seen += 1;
        let logging = service.logging.as_ref();
        let logging = logging.unwrap_or_else(|| panic!("{name} logs as the engine likes"));
        assert_eq!(logging.driver, "json-file", "{name}");
        for bound in ["max-size", "max-file"] {
            assert!(logging.options.contains_key(bound), "{name}: {bound}");
        }
        assert!(service.pids_limit.is_some_and(|limit| limit > 0), "{name}");
    }
    assert!(seen >= 11, "{seen} services");
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

#[test]
fn what_is_mounted_is_there_and_read_only_and_volumes_are_named() {
    for compose in composes() {
        for (name, service) in &compose.services {
            for (path, mount) in service.mounted() {
                assert!(path.exists(), "{name}: {}", path.display());
                assert!(mount.read_only, "{name}: {}", mount.target);
            }
            for Mount { source, .. } in service.volumes.iter().filter(|m| m.path().is_none()) {
                assert!(compose.volumes.contains_key(source), "{name}: {source}");
            }
        }
    }
}

/// An empty folder, root's, would be what its workers load, and they would start again for ever.
#[test]
fn a_folder_that_somebody_names_wrongly_is_told_and_not_made() {
    let mut seen = 0;
    for (name, service) in services() {
        let chosen = service.volumes.iter();
        for mount in chosen.filter(|mount| mount.source.contains('$')) {
            assert!(!mount.is_made, "{name}: {}", mount.source);
            seen += 1;
        }
    }
    assert_eq!(seen, 2, "the model, of each kind of worker");
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

#[test]
fn a_role_is_asked_for_its_health_and_its_metrics_where_it_listens() {
    let (dockerfile, targets) = (Dockerfile::read(), targets());
    let prometheus = fs::read_to_string(docker().join("prometheus.yml")).unwrap();
    let mut roles = Vec::new();
    for (service, image) in &targets {
        let Some(port) = dockerfile.health_port(image) else {
            continue;
        };
        let check = dockerfile.list(image, "HEALTHCHECK");
        assert_eq!(check, ["health", &port, "/livez"], "{service}");
        assert!(dockerfile.exposes(image, &port), "{service}");
        assert!(prometheus.contains(&format!("port: {port}\n")), "{service}");
        roles.push(service.as_str());
    }
    roles.sort_by_key(|role| *role != "gateway");
    let named = format!("names: [{}]", roles.join(", "));
    assert!(prometheus.contains(&named), "Prometheus looks for {named}");
}

#[test]
fn every_role_sends_spans_where_they_are_shown_at_once_and_lines_where_they_are_collected() {
    let (dockerfile, targets) = (Dockerfile::read(), targets());
    let [_, observe] = composes();
    let published: Vec<_> = observe.services.values().flat_map(|s| &s.ports).collect();
    for (name, image) in &targets {
        let service = observe.services.get(name);
        if dockerfile.health_port(image).is_some() {
            let service = service.unwrap_or_else(|| panic!("{name} sends nothing"));
            let endpoint = &service.environment["OTEL_EXPORTER_OTLP_ENDPOINT"];
            // Not through the collector: it keeps a trace back until its job cannot run any more.
            assert_eq!(endpoint, "http://tempo:4318", "{name}");
            // The name of its program, as its spans have it, is what leads from one to the other.
            let program = &dockerfile.list(image, "ENTRYPOINT")[1];
            let logging = service.logging.as_ref().unwrap();
            assert_eq!(&logging.options["tag"], program);
            // Whole seconds leave the lines of several roles within one in any order.
            let precise = logging.options.get("fluentd-sub-second-precision");
            assert_eq!(precise.map(String::as_str), Some("true"), "{name}");
            let engine = format!("{}:", logging.options["fluentd-address"]);
            assert!(
                published.iter().any(|port| port.starts_with(&engine)),
                "{name}"
            );
        }
    }
}

/// The panel of warnings and errors reads a level out of each line.
#[test]
fn whose_lines_are_collected_writes_them_as_json() {
    let (dockerfile, targets) = (Dockerfile::read(), targets());
    let [compose, observe] = composes();
    let mut seen = 0;
    for (name, service) in &observe.services {
        let logging = service.logging.as_ref();
        if logging.is_none_or(|logging| logging.driver != "fluentd") {
            continue;
        }
        let mut words = dockerfile.list(&targets[name], "ENTRYPOINT");
        words.extend(compose.services[name].command.iter().cloned());
        let json = words.windows(2).any(|two| two == ["--log-format", "json"]);
        assert!(json, "{name}: {words:?}");
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn an_address_in_a_file_is_a_service_that_listens_there() {
    let (dockerfile, targets, services) = (Dockerfile::read(), targets(), services());
    let listens = |name: &str, port: &str| match targets.get(name) {
        Some(image) => dockerfile.exposes(image, port),
        None => services.iter().any(|(service, parts)| {
            let forms = [format!("0.0.0.0:{port}"), format!("listen_port: {port}")];
            let configurations = parts.configurations();
            let said = |text: &String| forms.iter().any(|form| text.contains(form));
            service == name && configurations.iter().any(said)
        }),
    };
    let mut seen = BTreeSet::new();
    for (service, parts) in &services {
        let mut texts = parts.configurations();
        texts.extend(parts.command.iter().cloned());
        texts.extend(parts.environment.values().cloned());
        for (path, _) in parts
            .mounted()
            .filter(|(path, _)| path.ends_with("provisioning"))
        {
            texts.push(fs::read_to_string(path.join("datasources/fresco.yml")).unwrap());
        }
        for (name, port) in texts.iter().flat_map(|text| addresses(text)) {
            assert!(listens(name, port), "{service} calls {name}:{port}");
            seen.insert(name.to_owned());
        }
    }
    let seen: Vec<_> = seen.iter().map(String::as_str).collect();
    assert_eq!(seen, ["loki", "nats", "prometheus", "tempo"]);
}

/// What only runs beside a program, and what no program is made of, costs no compilation.
#[test]
fn nothing_is_compiled_or_fetched_again_for_what_programs_are_not_made_of() {
    let dockerfile = Dockerfile::read();
    let copied = |stage: &Stage| -> Vec<String> {
        let copies = stage.lines.iter();
        let copies = copies.filter_map(|line| line.strip_prefix("COPY "));
        let here = copies.filter(|copy| !copy.starts_with("--from"));
        let words = here.flat_map(|copy| {
            let words: Vec<_> = copy.split(' ').filter(|w| !w.starts_with("--")).collect();
            let sources = words[..words.len() - 1].iter().map(ToString::to_string);
            sources.collect::<Vec<_>>()
        });
        words.collect()
    };
    let mut of_all = Vec::new();
    for (name, stage) in &dockerfile.0 {
        let sources = copied(stage);
        if name != "run" {
            for source in &sources {
                let harmless = source != "." && !source.starts_with("docker/");
                assert!(harmless, "{name} copies {source}");
            }
        }
        of_all.extend(sources);
    }
    // And whatever else lies around does not even reach the engine.
    let text = fs::read_to_string(root().join(".dockerignore")).unwrap();
    let mut rules = text.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(rules.next(), Some("*"));
    let sent: Vec<_> = rules.filter_map(|rule| rule.strip_prefix("!/")).collect();
    assert!(sent.len() >= 8, "{sent:?}");
    for path in sent {
        let path = path.trim_end_matches('/');
        let used = |source: &String| {
            let source = source.replace("[r]", "r");
            path.starts_with(&source) || source.starts_with(path)
        };
        assert!(of_all.iter().any(used), "nothing copies {path}");
    }
}

#[test]
fn addresses_are_found_and_nothing_else_is() {
    let text =
        r#"url: "nats://watch:watch@nats:4222", http: 0.0.0.0:4318 tempo:2.7.1 a: 5 x-y:80/p"#;
    assert_eq!(addresses(text), [("nats", "4222"), ("x-y", "80")]);
}
