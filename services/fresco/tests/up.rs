//! The `fresco up` program with a real nats-server and services that are shell scripts.

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::{Instant, sleep, timeout},
};

/// The promise of a stop.
const STOP_MAX: Duration = Duration::from_secs(5);
/// A start that takes longer than this on a loaded machine hangs.
const START_MAX: Duration = Duration::from_secs(60);
/// Tells its process, then works for ever.
const WORKS: &str = "echo $$ > $DIR/$0.part; mv $DIR/$0.part $DIR/$0.process; exec sleep 600";
const SERVICES: [&str; 3] = ["fresco-gateway", "fresco-ar-batcher", "fresco-denoiser"];

/// A folder with programs, a model and data.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        let site = Self(tempfile::tempdir().expect("a temporary folder"));
        for folder in ["bin", "model"] {
            fs::create_dir(site.path(folder)).expect("a writable folder");
        }
        for service in SERVICES {
            site.program(service, WORKS);
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, name: &str, script: &str) {
        let file = self.path("bin").join(name);
        let script = script
            .replace("$DIR", &self.0.path().to_string_lossy())
            .replace("$0", name);
        fs::write(&file, format!("#!/bin/sh\n{script}\n")).expect("a writable folder");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("our file");
    }

    fn up(&self) -> Child {
        self.up_at("127.0.0.1:0")
    }

    fn up_at(&self, listen: &str) -> Child {
        let mut up = Command::new(env!("CARGO_BIN_EXE_fresco"));
        up.args(["up", "--denoisers", "1", "--listen", listen]);
        up.arg("--model")
            .arg(self.path("model"))
            .arg("--data")
            .arg(self.path("data"));
        up.arg("--bin-dir").arg(self.path("bin"));
        up.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        up.spawn().expect("fresco is built")
    }

    /// Waits until all services run; says which processes there are, the broker's too.
    async fn processes(&self) -> Vec<Pid> {
        let mut processes = Vec::new();
        for service in SERVICES {
            let file = self.path(&format!("{service}.process"));
            let there = timeout(START_MAX, until(|| file.exists())).await;
            there.unwrap_or_else(|_| panic!("{service} did not start"));
            let text = fs::read_to_string(&file).expect("it was written whole");
            processes.push(Pid::from_raw(
                text.trim().parse().expect("a process number"),
            ));
            fs::remove_file(&file).expect("it is ours");
        }
        processes.extend(holders(&self.path("data/children.lock")));
        processes
    }
}

/// The processes that have `lock` as their stdin.
fn holders(lock: &Path) -> Vec<Pid> {
    let lock = lock.canonicalize().expect("it is there");
    let processes = fs::read_dir("/proc").expect("linux").flatten();
    let held = processes.filter(|process| {
        fs::read_link(process.path().join("fd/0")).is_ok_and(|stdin| stdin == lock)
    });
    held.filter_map(|process| {
        process
            .file_name()
            .to_str()?
            .parse()
            .ok()
            .map(Pid::from_raw)
    })
    .collect()
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        sleep(Duration::from_millis(10)).await;
    }
}

/// Ended; whether its new parent has looked already is not our business.
fn gone(process: &Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.map_or(true, |stat| {
        stat.rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('Z'))
    })
}

fn signal(up: &Child, signal: Signal) {
    let process = up
        .id()
        .and_then(|id| i32::try_from(id).ok())
        .expect("it runs");
    kill(Pid::from_raw(process), signal).expect("it runs");
}

async fn end(up: Child) -> Output {
    timeout(START_MAX, up.wait_with_output())
        .await
        .expect("it hangs")
        .expect("it ran")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test]
async fn sigterm_ends_the_whole_tree_within_5_s() {
    let site = Site::new();
    let up = site.up();
    let processes = site.processes().await;
    assert_eq!(
        processes
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len(),
        4,
        "{processes:?}"
    );
    let asked_at = Instant::now();
    signal(&up, Signal::SIGTERM);
    let output = end(up).await;
    assert!(asked_at.elapsed() < STOP_MAX, "{:?}", asked_at.elapsed());
    assert!(output.status.success(), "{}", said(&output));
    assert!(processes.iter().all(gone));
}

#[tokio::test]
async fn a_killed_run_leaves_no_orphans_and_its_folder_can_be_used_again() {
    let site = Site::new();
    let first = site.up();
    let processes = site.processes().await;
    signal(&first, Signal::SIGKILL);
    assert!(!end(first).await.status.success());
    let second = site.up();
    timeout(STOP_MAX, until(|| processes.iter().all(gone)))
        .await
        .expect("orphans are left");
    let processes = site.processes().await;
    signal(&second, Signal::SIGINT);
    assert!(end(second).await.status.success());
    assert!(processes.iter().all(gone));
}

#[tokio::test]
async fn one_folder_has_one_fleet() {
    let site = Site::new();
    let first = site.up();
    site.processes().await;
    let second = end(site.up()).await;
    assert_eq!(second.status.code(), Some(2));
    assert!(
        said(&second).contains("in use by another fresco up"),
        "{}",
        said(&second)
    );
    signal(&first, Signal::SIGTERM);
    assert!(end(first).await.status.success());
}

#[tokio::test]
async fn a_service_that_cannot_work_ends_the_start_with_its_words() {
    let site = Site::new();
    site.program(
        "fresco-denoiser",
        "echo 'fresco-denoiser: transformer/config.json: unknown class' >&2; exit 2",
    );
    let output = end(site.up()).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("transformer/config.json: unknown class"),
        "{}",
        said(&output)
    );
    assert_eq!(holders(&site.path("data/children.lock")), []);
}

#[tokio::test]
async fn what_cannot_be_used_is_said_before_anything_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listen = taken.local_addr().expect("it is bound").to_string();
    let site = Site::new();
    let output = end(site.up_at(&listen)).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("--listen"), "{}", said(&output));

    fs::remove_file(site.path("bin/fresco-gateway")).expect("it is there");
    let output = end(site.up()).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("fresco-gateway"),
        "{}",
        said(&output)
    );

    fs::remove_dir(site.path("model")).expect("it is there");
    let output = end(site.up()).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("--model"), "{}", said(&output));
}
