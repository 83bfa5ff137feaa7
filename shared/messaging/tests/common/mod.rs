//! A broker of a test's own: real nats-server, own port, own store, gone with the test. No runtime needed.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test binary uses its part of the harness"
)]

use std::{
    io::{BufRead, BufReader},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU16, Ordering},
        mpsc,
    },
    thread,
};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::Pid,
};
use tempfile::TempDir;

/// What the tests' server is told. The limits of the topology are reserved, not used, so they are set out of reach.
const CONFIG: &str = r#"
max_payload: 16MB
max_pending: 256MB
ping_interval: "5s"
ping_max: 2
jetstream { max_mem: 1G, max_file: 1T, sync_interval: always }
"#;

const SYSTEM_USER: &str = "watcher";
const SYSTEM_PASSWORD: &str = "secret";

/// Longer than any pause of a loaded machine.
const VIOLATION_WITHIN: std::time::Duration = std::time::Duration::from_secs(30);

/// More than a test reads.
const VIOLATIONS_KEPT_MAX: usize = 64;

/// A running nats-server.
pub struct Broker {
    /// Goes with it.
    _dir: TempDir,
    port: u16,
    child: Child,
    launch: Launch,
    log: Mutex<mpsc::Receiver<String>>,
}

/// How a server is started, and again after it was killed.
pub struct Launch {
    pub config: PathBuf,
    /// The paths in the configuration start here.
    pub folder: PathBuf,
    pub environment: Vec<(String, String)>,
    /// Where it listens.
    pub address: Ipv4Addr,
    /// Where it stores, if the configuration does not say.
    pub store: Option<PathBuf>,
    /// Of its address for clients.
    pub scheme: &'static str,
}

impl Launch {
    /// Whether the server is a node of `cluster/node.conf`.
    fn is_node(&self) -> bool {
        let mut names = self.environment.iter().map(|(name, _)| name.as_str());
        names.any(|name| name == "FRESCO_ROUTE_LISTEN")
    }

    /// With this configuration, and all that it writes, in `dir`.
    fn written(dir: &TempDir, config: &str) -> Self {
        let file = dir.path().join("nats.conf");
        std::fs::write(&file, config).expect("the configuration can be written");
        Self {
            config: file,
            folder: dir.path().to_owned(),
            environment: Vec::new(),
            address: Ipv4Addr::LOCALHOST,
            store: Some(dir.path().join("store")),
            scheme: "nats",
        }
    }
}

impl Broker {
    /// On a free port, with an empty store.
    pub fn start() -> Self {
        Self::start_with(CONFIG)
    }

    /// The same with a payload limit that is the server's own default.
    pub fn start_with_small_payloads() -> Self {
        Self::start_with(&CONFIG.replace("max_payload: 16MB", ""))
    }

    /// With a system account, for [`Broker::system_url`]; everybody else needs no credentials, as without one.
    pub fn start_with_system_account() -> Self {
        Self::start_with(&format!("{CONFIG}{}\n", system_account()))
    }

    /// On a port that the caller has picked, with these lines added: a node of a cluster, say. A broker that is to
    /// be killed needs a port that no client's own end of a connection can take while it is away.
    pub fn start_at(port: u16, more_config: &str) -> Self {
        let dir = TempDir::with_prefix("fresco-nats-").expect("a temporary folder can be made");
        let config = format!("{CONFIG}{}\n{more_config}\n", system_account());
        Self::start_in(dir, &config, i32::from(port))
    }

    /// With a system account, on this address of a host of its own, with these lines added.
    pub fn start_on(address: Ipv4Addr, more_config: &str) -> Self {
        let dir = TempDir::with_prefix("fresco-nats-").expect("a temporary folder can be made");
        let config = format!("{CONFIG}{}\n{more_config}\n", system_account());
        let launch = Launch {
            address,
            ..Launch::written(&dir, &config)
        };
        Self::launch(dir, launch, -1)
    }

    fn start_with(config: &str) -> Self {
        let dir = TempDir::with_prefix("fresco-nats-").expect("a temporary folder can be made");
        Self::start_in(dir, config, -1)
    }

    fn start_in(dir: TempDir, config: &str, port: i32) -> Self {
        let launch = Launch::written(&dir, config);
        Self::launch(dir, launch, port)
    }

    /// As `launch` says; -1 is any free port.
    pub fn launch(dir: TempDir, launch: Launch, port: i32) -> Self {
        let (child, port, log) = spawn(&launch, port);
        Self {
            _dir: dir,
            port,
            child,
            launch,
            log: Mutex::new(log),
        }
    }

    pub fn url(&self) -> String {
        let Launch {
            scheme, address, ..
        } = &self.launch;
        format!("{scheme}://{address}:{}", self.port)
    }

    /// What it says next of something that a client may not do: who and which subject. Waits for it.
    pub fn next_violation(&self) -> String {
        let told = self.log().recv_timeout(VIOLATION_WITHIN);
        told.expect("the server tells of a violation")
    }

    /// The same of all that it has told of so far.
    pub fn violations(&self) -> Vec<String> {
        self.log().try_iter().collect()
    }

    /// The same of one that has ended, to its last word.
    pub fn last_violations(&self) -> Vec<String> {
        self.log().iter().collect()
    }

    pub fn system_url(&self) -> String {
        format!(
            "nats://{SYSTEM_USER}:{SYSTEM_PASSWORD}@{}:{}",
            self.launch.address, self.port
        )
    }

    fn log(&self) -> MutexGuard<'_, mpsc::Receiver<String>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// As a power cut would end the process: kill -9.
    pub fn kill(&mut self) {
        self.child.kill().expect("it was started");
        self.child.wait().expect("a killed server ends");
    }

    /// After [`Broker::kill`] or [`Broker::stop`]: the same port and store.
    pub fn start_again(&mut self) {
        let (child, port, log) = spawn(&self.launch, i32::from(self.port));
        assert_eq!(port, self.port, "the server listens where it did before");
        (self.child, self.log) = (child, Mutex::new(log));
    }

    /// As an operator ends it.
    pub fn stop(&mut self) {
        self.signal(Signal::SIGTERM);
        self.child.wait().expect("a server told to end ends");
    }

    /// As an operator ends a node of a cluster: leaders move away first, then clients. It ends by itself.
    pub fn lame_duck(&self) {
        self.signal(Signal::SIGUSR2);
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it was started").is_some()
    }

    /// Frozen: connections stay, nothing answers.
    pub fn freeze(&self) {
        self.signal(Signal::SIGSTOP);
        // Its threads stop one after the other: until all have, it answers.
        let stopped = WaitPidFlag::WSTOPPED | WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(self.pid_raw()), stopped).expect("the server is ours");
    }

    pub fn thaw(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid_raw(), signal).expect("the server runs");
    }

    fn pid_raw(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a process id fits"))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Already ended, or ends now: both are fine.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Ports for what is killed and comes back. Below the range from which the system draws clients' ends of connections:
/// one of those could take the port while its server is away.
pub fn free_port() -> u16 {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    static DRAWN: AtomicU16 = AtomicU16::new(0);
    // Harnesses that run beside each other start in different places.
    let start = u16::try_from(std::process::id() % u32::from(COUNT)).expect("below 10,000");
    let free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    (0..COUNT)
        .map(|_| FIRST + start.wrapping_add(DRAWN.fetch_add(1, Ordering::Relaxed)) % COUNT)
        .find(free)
        .expect("one of 10,000 ports is free")
}

fn system_account() -> String {
    format!(
        r#"accounts {{ "$SYS": {{ users: [ {{ user: {SYSTEM_USER}, password: {SYSTEM_PASSWORD} }} ] }} }}"#
    )
}

/// The server that set-up has put in place.
fn server() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let root = root
        .ancestors()
        .find(|dir| dir.join("Cargo.lock").exists())
        .expect("the workspace has a lock file");
    let server = root.join(".fresco/bin/nats-server");
    assert!(
        server.exists(),
        "{} is missing: run infra/setup",
        server.display()
    );
    server
}

/// Starts the server and waits for it to say that it is ready; a node listens for the others only after that, and is waited
/// for longer. Port -1 is any free one.
fn spawn(launch: &Launch, port: i32) -> (Child, u16, mpsc::Receiver<String>) {
    let store = launch
        .store
        .iter()
        .flat_map(|store| [Path::new("-sd"), store]);
    let mut child = Command::new(server())
        .args(["-a", &launch.address.to_string(), "-p", &port.to_string()])
        .arg("-c")
        .arg(&launch.config)
        .args(store)
        .envs(launch.environment.iter().cloned())
        .current_dir(&launch.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nats-server starts");
    let mut log = BufReader::new(child.stderr.take().expect("stderr is piped")).lines();
    let (mut text, mut port) = (String::new(), None);
    let (mut ready, mut listens) = (false, !launch.is_node());
    while !(ready && listens) {
        let Some(Ok(line)) = log.next() else {
            panic!("nats-server ended before it was ready:\n{text}")
        };
        if let Some((_, address)) = line.split_once("Listening for client connections on ") {
            port = address
                .rsplit(':')
                .next()
                .and_then(|port| port.parse().ok());
        }
        ready |= line.contains("Server is ready");
        listens |= line.contains("Listening for route connections on ");
        text.push_str(&line);
        text.push('\n');
    }
    // Somebody has to read the pipe, or the server blocks on its log. Most tests read nothing of it: what is told of
    // violations is kept, and there are few.
    let (tell, told) = mpsc::sync_channel(VIOLATIONS_KEPT_MAX);
    thread::spawn(move || {
        for line in log.map_while(Result::ok) {
            if line.contains("Violation") {
                drop(tell.try_send(line));
            }
        }
    });
    (child, port.expect("the server tells its port"), told)
}
