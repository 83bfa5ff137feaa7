//! The `fresco up` program with a real nats-server and services that are shell scripts.

mod worker;

use std::{
    fs,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::Duration,
};

use messaging::Bus;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use protocol::{PriorityClass, WorkerPresence};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
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
        self.up_with(&["--denoisers", "1", "--listen", listen])
    }

    fn up_with(&self, flags: &[&str]) -> Child {
        let mut up = self.command(flags);
        up.arg("--model").arg(self.path("model"));
        up.spawn().expect("fresco is built")
    }

    /// With a fleet's file, and one of times beside it.
    fn up_fleet(&self, text: &str) -> Child {
        let file = self.path("fleet.toml");
        let times = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../infra/times/ascend.json");
        fs::copy(times, self.path("times.json")).expect("a writable folder");
        fs::write(&file, text).expect("a writable folder");
        let mut up = self.command(&[]);
        up.arg("--fleet").arg(file);
        up.spawn().expect("fresco is built")
    }

    fn command(&self, flags: &[&str]) -> Command {
        let mut up = Command::new(env!("CARGO_BIN_EXE_fresco"));
        up.arg("up").args(flags);
        up.arg("--data").arg(self.path("data"));
        up.arg("--bin-dir").arg(self.path("bin"));
        up.stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        up
    }

    /// Two denoisers that hold what they get for ever, and how to reach their broker.
    async fn up_with_workers(&self) -> (Child, Bus) {
        let program = std::env::current_exe().expect("a test knows its own path");
        let arguments = worker::ARGUMENTS.join(" ");
        let script = format!(
            "echo $2 > $DIR/url.$$; exec {} {arguments} < $DIR/url.$$",
            program.display()
        );
        self.program("fresco-denoiser", &script);
        let listen = ["--listen", "127.0.0.1:0", "--prefix", "t"];
        let up = self.up_with(&[&listen[..], &["--ack-wait-s", "60"]].concat());
        let port = self.path("data/nats.port");
        let there = timeout(START_MAX, until(|| port.exists())).await;
        there.expect("the broker has no port");
        let port = fs::read_to_string(port).expect("it was written whole");
        let bus = worker::connect(&format!("nats://127.0.0.1:{port}")).await;
        worker::until("both wait", || async {
            (bus.queues().await.ok()?.denoise.idle == 2).then_some(())
        })
        .await;
        (up, bus)
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
async fn the_end_of_the_terminal_leaves_a_fleet_that_was_started_to_outlive_it() {
    let site = Site::new();
    let mut up = Command::new("/bin/sh");
    // As `nohup` does.
    up.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]);
    up.arg(env!("CARGO_BIN_EXE_fresco"));
    up.args(["up", "--denoisers", "1", "--listen", "127.0.0.1:0"]);
    up.arg("--model").arg(site.path("model"));
    up.arg("--data").arg(site.path("data"));
    up.arg("--bin-dir").arg(site.path("bin"));
    up.stdin(Stdio::null()).stderr(Stdio::piped());
    let up = up.kill_on_drop(true).spawn().expect("a shell");
    let first = site.processes().await;
    signal(&up, Signal::SIGHUP);
    for process in &first[..SERVICES.len()] {
        kill(*process, Signal::SIGKILL).expect("it is ours");
    }
    // Once it had heard a wish to stop it would start nobody again.
    let second = site.processes().await;
    assert!(second.iter().all(|process| !gone(process)));
    signal(&up, Signal::SIGTERM);
    let output = end(up).await;
    assert!(output.status.success(), "{}", said(&output));
    assert!(second.iter().all(gone));
}

#[tokio::test]
async fn children_take_no_broker_from_the_environment_of_the_caller() {
    let site = Site::new();
    site.program(
        "fresco-gateway",
        &format!("env > $DIR/environment\n{WORKS}"),
    );
    let mut up = site.command(&["--denoisers", "1", "--listen", "127.0.0.1:0"]);
    up.arg("--model").arg(site.path("model"));
    up.env("FRESCO_NATS_CA", "/of/another/broker")
        .env("FRESCO_LOG", "info");
    let up = up.spawn().expect("fresco is built");
    site.processes().await;
    let environment = fs::read_to_string(site.path("environment")).expect("it was written");
    assert!(environment.contains("FRESCO_LOG="), "{environment}");
    assert!(!environment.contains("FRESCO_NATS_"), "{environment}");
    signal(&up, Signal::SIGTERM);
    assert!(end(up).await.status.success());
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

/// A fleet on two devices, of which the first cannot be used.
const ONE_BROKEN: &str = r#"
engine = "replay"
times = "times.json"
[pin]
variable = "FRESCO_TEST_DEVICE"
device = "any"
[gateway]
listen = "127.0.0.1:0"
[ar]
[denoisers]
devices = [2, 3]
"#;

#[tokio::test]
async fn a_broken_device_is_told_and_leaves_the_others_at_work() {
    let site = Site::new();
    let broken =
        "[ $FRESCO_TEST_DEVICE = 2 ] && { echo 'fresco-denoiser: no such device' >&2; exit 2; }";
    site.program("fresco-denoiser", &format!("{broken}\n{WORKS}"));
    let mut up = site.up_fleet(ONE_BROKEN);
    let mut told = BufReader::new(up.stderr.take().expect("it is piped")).lines();
    let line = timeout(START_MAX, async {
        loop {
            let line = told
                .next_line()
                .await
                .expect("it is text")
                .expect("it goes on");
            if line.contains("denoiser-2") && line.contains("no such device") {
                return line;
            }
        }
    });
    println!("{}", line.await.expect("it is told"));
    let processes = site.processes().await;
    signal(&up, Signal::SIGTERM);
    let status = timeout(START_MAX, up.wait()).await.expect("it ends");
    assert!(status.expect("it ran").success());
    assert!(processes.iter().all(gone));
}

#[tokio::test]
async fn a_machine_that_only_paints_runs_denoisers_on_the_broker_of_another() {
    let others = Site::new();
    let (up_there, bus) = others.up_with_workers().await;
    let url = fs::read_to_string(others.path("data/nats.port")).expect("it runs");
    let url = format!("nats://127.0.0.1:{url}");
    let site = Site::new();
    let program = std::env::current_exe().expect("a test knows its own path");
    let arguments = worker::ARGUMENTS.join(" ");
    let works = format!(
        "echo $2 > $DIR/url.$$; exec {} {arguments} < $DIR/url.$$",
        program.display()
    );
    site.program("fresco-denoiser", &works);
    // Nobody needs what it does not start.
    for missing in ["fresco-gateway", "fresco-ar-batcher"] {
        fs::remove_file(site.path("bin").join(missing)).expect("it is there");
    }
    let mut up = site.up_fleet(&format!(
        "engine = \"replay\"\ntimes = \"times.json\"\nprefix = \"t\"\n[broker]\nurls = [\"{url}\"]\n\
         ack_wait_s = 60\n[denoisers]\ndevices = [7]\n"
    ));
    let mut told = BufReader::new(up.stdout.take().expect("it is piped")).lines();
    let ready = timeout(START_MAX, told.next_line())
        .await
        .expect("it is told");
    let ready = ready.expect("it is text").expect("it goes on");
    assert!(ready.contains("workers here are ready"), "{ready}");
    let workers = bus.workers().await.expect("the broker answers");
    assert_eq!(workers.len(), 3);
    signal(&up, Signal::SIGTERM);
    let output = end(up).await;
    assert!(output.status.success(), "{}", said(&output));
    signal(&up_there, Signal::SIGTERM);
    end(up_there).await;
}

#[tokio::test]
async fn what_cannot_be_used_is_said_before_anything_starts() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let listen = taken.local_addr().expect("it is bound").to_string();
    let site = Site::new();
    let output = end(site.up_at(&listen)).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("--listen"), "{}", said(&output));
    let probes = format!("health_listen = \"{listen}\"\n[ar]");
    let output = end(site.up_fleet(&ONE_BROKEN.replace("[ar]", &probes))).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("`gateway.health_listen`"),
        "{}",
        said(&output)
    );

    let output = end(site.up_fleet(&ONE_BROKEN.replace("times.json", "none"))).await;
    assert_eq!(output.status.code(), Some(2));
    let told = said(&output);
    assert!(told.contains("`times`"), "{told}");
    assert!(!told.contains("starting"), "{told}");

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

fn pid(process: u32) -> Pid {
    Pid::from_raw(process.try_into().expect("a process number"))
}

/// Nobody may notice by the ack deadline, which is a minute here.
const GIVEN_BACK_MAX: Duration = Duration::from_secs(5);

#[tokio::test]
async fn the_job_of_a_killed_child_is_with_another_at_once() {
    let site = Site::new();
    let (up, bus) = site.up_with_workers().await;
    let mut times = Vec::new();
    let (class, job) = (PriorityClass::Standard, worker::denoise_job(1));
    bus.publish_denoise_job(class, None, &job)
        .await
        .expect("there is room");
    for _ in 0..3 {
        let [busy] = worker::until_busy(&bus, 1).await.try_into().expect("one");
        kill(pid(busy.process), Signal::SIGKILL).expect("it runs");
        let killed = Instant::now();
        let next = worker::until("another has it", || async {
            let workers = bus.workers().await.ok()?;
            let mut workers = workers.into_iter();
            workers.find(|other| !other.held.is_empty() && other.worker != busy.worker)
        });
        let next = next.await;
        times.push(killed.elapsed());
        assert_eq!(next.held[0].output, job.output);
        worker::until("two wait or work", || async {
            (bus.workers().await.ok()?.len() == 2).then_some(())
        })
        .await;
    }
    println!("killed, and with another after {times:?}");
    assert!(times.iter().all(|took| *took < GIVEN_BACK_MAX), "{times:?}");
    signal(&up, Signal::SIGTERM);
    end(up).await;
}

#[tokio::test]
async fn a_worker_started_by_hand_is_watched_too() {
    let site = Site::new();
    let (up, bus) = site.up_with_workers().await;
    let port = fs::read_to_string(site.path("data/nats.port")).expect("it is there");
    let mut by_hand = worker::Worker::start(&format!("nats://127.0.0.1:{port}"));
    let held = async || {
        let workers = bus.workers().await.ok()?;
        let of = |worker: &WorkerPresence| (worker.process, worker.held.len());
        Some(workers.iter().map(of).collect::<Vec<_>>())
    };
    worker::until("it waits", || async {
        (held().await?.len() == 3).then_some(())
    })
    .await;
    // Until it has one.
    let mut jobs = 0;
    loop {
        jobs += 1;
        let job = worker::denoise_job(jobs);
        let published = bus.publish_denoise_job(PriorityClass::Standard, None, &job);
        published.await.expect("there is room");
        let all = || async {
            let held = held().await?;
            let sum: usize = held.iter().map(|(_, held)| held).sum();
            (sum as u128 == jobs).then_some(held)
        };
        let held = worker::until("all are held", all).await;
        if held
            .iter()
            .any(|(process, held)| *process == by_hand.id() && *held > 0)
        {
            break;
        }
    }
    by_hand.kill();
    let killed = Instant::now();
    worker::until("others hold all", || async {
        let held = held().await?;
        let others = held.iter().filter(|(process, _)| *process != by_hand.id());
        (others.map(|(_, held)| *held as u128).sum::<u128>() == jobs).then_some(())
    })
    .await;
    println!("killed, and with others after {:?}", killed.elapsed());
    assert!(killed.elapsed() < GIVEN_BACK_MAX, "{:?}", killed.elapsed());
    signal(&up, Signal::SIGTERM);
    end(up).await;
}

#[tokio::test]
async fn a_hung_child_is_ended_and_started_again() {
    let site = Site::new();
    let (up, bus) = site.up_with_workers().await;
    // Whoever is asked whether it lives has said before that it is ready; nobody outside can see that.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let hung = bus.workers().await.expect("the broker answers").remove(0);
    kill(pid(hung.process), Signal::SIGSTOP).expect("it runs");
    let frozen = Instant::now();
    worker::until("it is gone", || async {
        gone(&pid(hung.process)).then_some(())
    })
    .await;
    println!("hung, and ended after {:?}", frozen.elapsed());
    assert!(
        frozen.elapsed() > Duration::from_secs(4),
        "{:?}",
        frozen.elapsed()
    );
    worker::until("another one waits in its place", || async {
        let workers = bus.workers().await.ok()?;
        let others = workers.iter().filter(|worker| worker.worker != hung.worker);
        (others.count() == 2).then_some(())
    })
    .await;
    signal(&up, Signal::SIGTERM);
    assert!(said(&end(up).await).contains("hangs"));
}

/// Of `data`'s broker: how often it was asked whether it is well.
async fn broker_asked(site: &Site) -> Option<u64> {
    let port = fs::read_to_string(site.path("data/nats.monitor.port")).ok()?;
    let varz = reqwest::get(format!("http://127.0.0.1:{port}/varz")).await;
    let varz: serde_json::Value = varz.ok()?.json().await.ok()?;
    varz["http_req_stats"]["/healthz"].as_u64()
}

#[tokio::test]
async fn a_hung_broker_is_ended_and_started_again() {
    let site = Site::new();
    let (up, bus) = site.up_with_workers().await;
    let broker = holders(&site.path("data/children.lock"));
    let is_broker = |process: &Pid| {
        let command = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&command).contains("nats.conf")
    };
    let broker = broker.into_iter().find(is_broker).expect("it runs");
    // The workers are there: whatever is asked from now on is answered with yes.
    let asked = broker_asked(&site).await.unwrap_or_default();
    worker::until("it has said that it is well", || async {
        (broker_asked(&site).await? > asked + 2).then_some(())
    })
    .await;
    kill(broker, Signal::SIGSTOP).expect("it runs");
    let frozen = Instant::now();
    worker::until("it is gone", || async { gone(&broker).then_some(()) }).await;
    println!("hung, and ended after {:?}", frozen.elapsed());
    assert!(
        frozen.elapsed() > Duration::from_secs(4),
        "{:?}",
        frozen.elapsed()
    );
    worker::until("both wait again", || async {
        (bus.queues().await.ok()?.denoise.idle == 2).then_some(())
    })
    .await;
    signal(&up, Signal::SIGTERM);
    assert!(said(&end(up).await).contains("nats-server hangs"));
}

#[tokio::test]
async fn streams_stay_in_the_global_account_beside_the_system_account() {
    // Where a server without accounts, of an older version, had them.
    let site = Site::new();
    let (up, bus) = site.up_with_workers().await;
    bus.close().await;
    signal(&up, Signal::SIGTERM);
    end(up).await;
    assert!(site.path("data/nats/jetstream/$G/streams/t-DN").is_dir());
}
