//! Brokers from the configuration that `infra/nats` gives operators, with keys and certificates made for the test.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test binary uses its part of the harness"
)]

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use messaging::{Access, UserKey};
use tempfile::TempDir;

use crate::common::{Broker, Launch, free_port};

/// Roles as `roles.conf` names their keys.
pub const ROLES: [&str; 7] = [
    "gateway",
    "ar-batcher",
    "denoiser",
    "operator",
    "watcher",
    "admin",
    "system",
];

/// The credential of [`Secrets::make_with_tester`].
pub const TESTER: &str = "tester";

/// A copy of `infra/nats` with keys and certificates beside it, as on a machine of a deployment.
pub struct Secrets {
    folder: TempDir,
}

impl Secrets {
    pub fn make() -> Self {
        let folder = TempDir::with_prefix("fresco-secrets-").expect("a folder can be made");
        copy(&source(), folder.path());
        write_keys(folder.path(), &ROLES);
        write_certificates(folder.path());
        Self { folder }
    }

    /// The same with one user more in the deployment's account, who may do everything: a test that looks at all that there
    /// is has no role of a deployment.
    pub fn make_with_tester() -> Self {
        let secrets = Self::make();
        let file = secrets.folder().join("roles.conf");
        let roles = fs::read_to_string(&file).expect("it was copied");
        let users = "    users: [\n";
        assert!(roles.contains(users), "roles.conf has another form");
        let tester = format!("{users}      {{ nkey: $FRESCO_TESTER_KEY }}\n");
        fs::write(file, roles.replacen(users, &tester, 1)).expect("a writable folder");
        write_keys(secrets.folder(), &[&ROLES[..], &[TESTER]].concat());
        secrets
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A line at the end of `file`.
    pub fn add(&self, file: &str, line: &str) {
        let file = self.folder().join(file);
        let text = fs::read_to_string(&file).expect("it was copied");
        fs::write(file, format!("{text}\n{line}\n")).expect("a writable folder");
    }

    /// What a process of `role` is started with.
    pub fn access(&self, role: &str) -> Access {
        Access {
            credentials: Some(self.folder().join(format!("{role}.nk"))),
            ca: Some(self.folder().join("ca.pem")),
        }
    }

    /// `single.conf`.
    pub fn single(&self) -> Broker {
        self.start("single.conf", -1, Vec::new())
    }

    /// The three nodes of `cluster/node.conf`.
    pub fn cluster(&self) -> Vec<Broker> {
        let ports = || [(); 3].map(|()| free_port());
        let (clients, routes) = (ports(), ports());
        let nodes = clients.iter().enumerate();
        let start = |(node, port): (usize, &u16)| self.node(node, *port, &routes);
        nodes.map(start).collect()
    }

    /// Node `node` of `cluster/node.conf`, for clients at `port` and for the others at `routes[node]`.
    pub fn node(&self, node: usize, port: u16, routes: &[u16]) -> Broker {
        let at = |port: u16| format!("127.0.0.1:{port}");
        let mut environment = vec![
            ("FRESCO_NATS_NAME".to_owned(), format!("n{node}")),
            ("FRESCO_NATS_LISTEN".to_owned(), at(port)),
            ("FRESCO_NATS_ADVERTISE".to_owned(), at(port)),
            ("FRESCO_ROUTE_LISTEN".to_owned(), at(routes[node])),
            ("FRESCO_ROUTE_ADVERTISE".to_owned(), at(routes[node])),
        ];
        let route = |(index, port): (usize, &u16)| {
            (
                format!("FRESCO_ROUTE_{}", index + 1),
                format!("tls://{}", at(*port)),
            )
        };
        environment.extend(routes.iter().enumerate().map(route));
        self.start("cluster/node.conf", i32::from(port), environment)
    }

    fn start(&self, config: &str, port: i32, environment: Vec<(String, String)>) -> Broker {
        let dir = TempDir::with_prefix("fresco-nats-").expect("a temporary folder can be made");
        let store = dir.path().join("store").to_string_lossy().into_owned();
        let mut environment = environment;
        environment.push(("FRESCO_NATS_STORE".to_owned(), store));
        let launch = Launch {
            config: self.folder().join(config),
            folder: self.folder().to_owned(),
            environment,
            address: Ipv4Addr::LOCALHOST,
            store: None,
            scheme: "tls",
        };
        Broker::launch(dir, launch, port)
    }
}

/// Where operators find it.
fn source() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = here
        .ancestors()
        .find(|dir| dir.join("Cargo.lock").exists())
        .expect("the workspace has a lock file");
    root.join("infra/nats")
}

/// The configuration as it is, but for the port that tells how the server is: it is a fixed one.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a writable folder");
    for entry in fs::read_dir(from).expect("infra/nats is there") {
        let path = entry.expect("it can be listed").path();
        let name = path.file_name().expect("it has a name");
        if path.is_dir() {
            copy(&path, &to.join(name));
        } else {
            let text = fs::read_to_string(&path).expect("it is text");
            let text = text.replace("127.0.0.1:8222", "127.0.0.1:-1");
            fs::write(to.join(name), text).expect("a writable folder");
        }
    }
}

fn write_keys(folder: &Path, roles: &[&str]) {
    let mut config = String::new();
    for role in roles {
        let key = UserKey::generate();
        fs::write(folder.join(format!("{role}.nk")), key.seed).expect("a writable folder");
        let variable = role.to_uppercase().replace('-', "_");
        config.push_str(&format!("FRESCO_{variable}_KEY: {}\n", key.public));
    }
    fs::write(folder.join("keys.conf"), config).expect("a writable folder");
}

/// An authority, and one certificate for every server of this machine: by the script that operators run.
fn write_certificates(folder: &Path) {
    let said = certificates(folder, &["localhost", "127.0.0.1"]);
    assert!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
}

/// `infra/nats/certificates.sh`.
pub fn certificates(folder: &Path, names: &[&str]) -> Output {
    let mut script = Command::new(source().join("certificates.sh"));
    let said = script.arg(folder).args(names).output();
    said.expect("the script can be run")
}
