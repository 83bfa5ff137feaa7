//! What `docker/` says, as far as it is looked at here.

use std::{collections::BTreeMap, fs, path::PathBuf};

use integration::root;
use serde::Deserialize;

/// The one that brings a deployment up, and the one that is read on top of it.
const FILES: [&str; 2] = ["compose.yaml", "compose.observe.yaml"];

#[derive(Deserialize)]
pub(crate) struct Compose {
    pub(crate) services: BTreeMap<String, Service>,
    pub(crate) volumes: BTreeMap<String, Volume>,
}

#[derive(Deserialize)]
pub(crate) struct Volume {}

/// What is read here of a service; in the second file it may be an addition to one of the first.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(crate) struct Service {
    pub(crate) image: Option<String>,
    pub(crate) build: Option<Build>,
    pub(crate) user: Option<String>,
    pub(crate) read_only: bool,
    pub(crate) cap_drop: Vec<String>,
    pub(crate) cap_add: Vec<String>,
    pub(crate) security_opt: Vec<String>,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) command: Vec<String>,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) volumes: Vec<Mount>,
    pub(crate) ports: Vec<String>,
    pub(crate) logging: Option<Logging>,
    pub(crate) pull_policy: Option<String>,
    pub(crate) pids_limit: Option<u32>,
    pub(crate) depends_on: BTreeMap<String, Dependency>,
}

/// A folder or a file of the host, or a volume, and where a container has it.
#[derive(Deserialize)]
#[serde(from = "Written")]
pub(crate) struct Mount {
    /// As it is written, with the variable that chooses it.
    pub(crate) source: String,
    pub(crate) target: String,
    pub(crate) read_only: bool,
    /// Whether the engine makes an empty folder of a source that is not there.
    pub(crate) is_made: bool,
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
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let path = self.source.strip_prefix("${MODEL:-");
        let path = path.unwrap_or(&self.source).trim_end_matches('}');
        path.starts_with('.').then(|| docker().join(path))
    }
}

#[derive(Deserialize)]
pub(crate) struct Dependency {}

#[derive(Deserialize)]
pub(crate) struct Build {
    pub(crate) target: String,
}

#[derive(Deserialize)]
pub(crate) struct Logging {
    pub(crate) driver: String,
    pub(crate) options: BTreeMap<String, String>,
}

impl Service {
    /// Files and folders of this repository, and where they are mounted.
    pub(crate) fn mounted(&self) -> impl Iterator<Item = (PathBuf, &Mount)> {
        self.volumes
            .iter()
            .filter_map(|mount| Some((mount.path()?, mount)))
    }

    /// The configurations that it gets.
    pub(crate) fn configurations(&self) -> Vec<String> {
        let files = self.mounted().filter(|(path, _)| path.is_file());
        files
            .map(|(path, _)| fs::read_to_string(path).unwrap())
            .collect()
    }
}

/// Of the Dockerfile: an image that others are made from, or that runs.
#[derive(Default)]
pub(crate) struct Stage {
    pub(crate) from: String,
    pub(crate) lines: Vec<String>,
}

pub(crate) struct Dockerfile(pub(crate) BTreeMap<String, Stage>);

impl Dockerfile {
    pub(crate) fn read() -> Self {
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
    pub(crate) fn last(&self, image: &str, instruction: &str) -> Option<&str> {
        let stage = self.0.get(image)?;
        let own = stage.lines.iter().rev();
        let own = own.filter_map(|line| line.strip_prefix(instruction)?.strip_prefix(' '));
        own.map(str::trim)
            .next()
            .or_else(|| self.last(&stage.from, instruction))
    }

    /// A list as JSON that ends the last `instruction`.
    pub(crate) fn list(&self, image: &str, instruction: &str) -> Vec<String> {
        let text = self.last(image, instruction).unwrap_or("[]");
        serde_json::from_str(&text[text.find('[').unwrap()..]).unwrap()
    }

    pub(crate) fn exposes(&self, image: &str, port: &str) -> bool {
        let ports = self.last(image, "EXPOSE").unwrap_or_default();
        ports.split(' ').any(|exposed| exposed == port)
    }

    /// Where a role answers probes and Prometheus, if it is one.
    pub(crate) fn health_port(&self, image: &str) -> Option<String> {
        let flags = self.list(image, "ENTRYPOINT");
        let at = flags.iter().position(|flag| flag == "--health-listen")?;
        Some(flags[at + 1].rsplit_once(':')?.1.to_owned())
    }
}

pub(crate) fn docker() -> PathBuf {
    root().join("docker")
}

pub(crate) fn composes() -> [Compose; 2] {
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
pub(crate) fn services() -> Vec<(String, Service)> {
    composes().into_iter().flat_map(|c| c.services).collect()
}

/// Service → the image of the Dockerfile that it runs.
pub(crate) fn targets() -> BTreeMap<String, String> {
    let services = services().into_iter();
    services
        .filter_map(|(name, service)| Some((name, service.build?.target)))
        .collect()
}
