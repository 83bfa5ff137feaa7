//! `fresco watch`: jobs of dead workers go to others at once, streams come back. Against a real nats-server.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

#[path = "../../../shared/messaging/tests/common/mod.rs"]
mod common;
mod wire;
mod worker;

use std::{io::Write, net::TcpStream, process::Stdio, time::Duration};

use common::Broker;
use fresco::watch::{absence::RECONNECT_MAX, keeper, watcher};
use messaging::{Access, Bus};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use protocol::{PriorityClass, topology::Topology};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::ChildStderr,
    time::{Instant, timeout},
};
use tokio_util::task::TaskTracker;
use wire::Wire;
use worker::{Worker, connect, denoise_job, hold, join, prefix, until, until_busy, within};

/// Far below the ack deadline of 15 s, which is what there is without a watcher; on an idle machine it takes 0.6 s.
const SOON: Duration = Duration::from_secs(5);

struct Site {
    broker: Broker,
    bus: Bus,
    topology: Topology,
}

impl Site {
    /// A deployment that is watched.
    async fn start() -> Self {
        Self::with(Topology::new(&prefix())).await
    }

    async fn with(topology: Topology) -> Self {
        let broker = Broker::start_with_system_account();
        let bus = connect(&broker.url()).await;
        bus.provision(&topology)
            .await
            .expect("an empty broker takes the topology");
        let site = Self {
            broker,
            bus,
            topology,
        };
        site.watch();
        site
    }

    fn watch(&self) {
        let (bus, urls) = (self.bus.clone(), vec![self.broker.system_url()]);
        TaskTracker::new()
            .spawn(async move { watcher::watch(&bus, &urls, &Access::default(), |_| ()).await });
    }

    async fn enqueue(&self, job: u128) {
        let class = PriorityClass::Standard;
        self.bus
            .publish_denoise_job(class, None, &denoise_job(job))
            .await
            .unwrap();
    }

    fn worker(&self) -> Worker {
        Worker::start(&self.broker.url())
    }
}

#[tokio::test]
async fn a_killed_workers_job_is_soon_with_another() {
    let site = Site::start().await;
    let mut times = Vec::new();
    for job in 1..=3 {
        let mut doomed = site.worker();
        until("the worker waits", || async {
            (site.bus.queues().await.ok()?.denoise.idle == 1).then_some(())
        })
        .await;
        site.enqueue(job).await;
        let busy = until_busy(&site.bus, 1).await;
        assert_eq!(busy[0].process, doomed.id());
        let (other, mut queue) = join(&site.broker.url()).await;
        doomed.kill();
        let killed = Instant::now();
        let delivery = within("another has it", queue.next()).await;
        times.push(killed.elapsed());
        assert_eq!(delivery.delivered, 2);
        let workers = site.bus.workers().await.unwrap();
        assert!(
            workers.iter().all(|worker| worker.worker != busy[0].worker),
            "it is forgotten"
        );
        delivery.lease.ack().await;
        queue.close().await;
        other.leave();
        other.bus.close().await;
    }
    println!("killed, and with another after {times:?}");
    assert!(
        times
            .iter()
            .all(|took| (RECONNECT_MAX..SOON).contains(took)),
        "{times:?}"
    );
}

#[tokio::test]
async fn a_frozen_workers_job_is_with_another_when_the_server_gives_the_worker_up() {
    // Only who is not told would wait for this.
    let topology = Topology::with_ack_wait(&prefix(), Duration::from_secs(300));
    let site = Site::with(topology).await;
    let doomed = site.worker();
    site.enqueue(1).await;
    until_busy(&site.bus, 1).await;
    let (_other, mut queue) = join(&site.broker.url()).await;
    let process = Pid::from_raw(doomed.id().try_into().unwrap());
    kill(process, Signal::SIGSTOP).unwrap();
    let frozen = Instant::now();
    let delivery = within("another has it", queue.next()).await;
    println!("frozen, and with another after {:?}", frozen.elapsed());
    assert_eq!(delivery.delivered, 2);
    kill(process, Signal::SIGCONT).unwrap();
    let back = until("it is there again", || async {
        let workers = site.bus.workers().await.ok()?;
        let mut workers = workers.into_iter();
        workers.find(|worker| worker.process == doomed.id())
    });
    back.await;
}

#[tokio::test]
async fn two_watchers_give_a_job_back_once() {
    let site = Site::start().await;
    site.watch();
    let mut doomed = site.worker();
    site.enqueue(1).await;
    until_busy(&site.bus, 1).await;
    let (_other, mut queue) = join(&site.broker.url()).await;
    let (_third, mut third) = join(&site.broker.url()).await;
    doomed.kill();
    let delivery = tokio::select! {
        delivery = queue.next() => delivery,
        delivery = third.next() => delivery,
        () = tokio::time::sleep(SOON) => panic!("nobody has it"),
    };
    let again = async {
        tokio::select! { again = queue.next() => again, again = third.next() => again }
    };
    let again = timeout(2 * RECONNECT_MAX, again).await;
    assert!(again.is_err(), "given back twice: {again:?}");
    assert_eq!(delivery.delivered, 2);
}

#[tokio::test]
async fn a_worker_that_reconnects_keeps_its_job() {
    let site = Site::start().await;
    let wire = Wire::to(&site.broker.url()).await;
    let (worker, mut queue) = join(&wire.url()).await;
    site.enqueue(1).await;
    let held = within("it has the job", hold(&worker, &mut queue)).await;
    until_busy(&site.bus, 1).await;
    let (_other, mut others) = join(&site.broker.url()).await;

    for _ in 0..3 {
        let epoch = worker.bus.connection().borrow().epoch;
        let cut = Instant::now();
        wire.cut();
        let mut connection = worker.bus.connection();
        let back = connection.wait_for(|now| now.up && now.epoch > epoch);
        within("it is back", back).await.unwrap();
        println!("connected again after {:?}", cut.elapsed());
        let taken = timeout(2 * RECONNECT_MAX, others.next()).await;
        assert!(taken.is_err(), "it was taken away: {taken:?}");
    }
    assert!(!held.lease.is_lost());

    wire.cut_for_good();
    let cut = Instant::now();
    let delivery = within("another has it", others.next()).await;
    println!("cut off, and with another after {:?}", cut.elapsed());
    assert!(
        (RECONNECT_MAX..SOON).contains(&cut.elapsed()),
        "{:?}",
        cut.elapsed()
    );
    assert_eq!(delivery.delivered, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_broker_takes_no_job_away_and_is_watched_again() {
    let mut site = Site::start().await;
    let (worker, mut queue) = join(&site.broker.url()).await;
    site.enqueue(1).await;
    let held = within("it has the job", hold(&worker, &mut queue)).await;
    until_busy(&site.bus, 1).await;
    site.broker.kill();
    site.broker.start_again();
    within("connected", site.bus.connected()).await;
    let (_other, mut others) = join(&site.broker.url()).await;
    let taken = timeout(3 * RECONNECT_MAX, others.next()).await;
    assert!(taken.is_err(), "it was taken away: {taken:?}");
    assert!(!held.lease.is_lost());

    let mut doomed = site.worker();
    until("it waits", || async {
        (site.bus.workers().await.ok()?.len() == 3).then_some(())
    })
    .await;
    doomed.kill();
    let killed = Instant::now();
    until("it is forgotten", || async {
        (site.bus.workers().await.ok()?.len() == 2).then_some(())
    })
    .await;
    assert!(killed.elapsed() < SOON, "{:?}", killed.elapsed());
}

#[tokio::test]
async fn the_program_keeps_watches_and_tells_no_password() {
    let broker = Broker::start_with_system_account();
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_fresco"));
    program.args(["watch", "--prefix", "t", "--nats-url", &broker.url()]);
    program.args([
        "--system-url",
        &broker.system_url(),
        "--log",
        "debug",
        "--ack-wait-s",
        "300",
    ]);
    program.stderr(Stdio::piped()).kill_on_drop(true);
    let program = program.spawn().unwrap();
    let bus = connect(&broker.url()).await;
    let topology = Topology::new(&prefix());
    until("the streams are there", || async {
        bus.verify(&topology).await.ok()
    })
    .await;

    let mut doomed = Worker::start(&broker.url());
    let class = PriorityClass::Standard;
    bus.publish_denoise_job(class, None, &denoise_job(1))
        .await
        .unwrap();
    until_busy(&bus, 1).await;
    doomed.kill();
    let (_other, mut queue) = join(&broker.url()).await;
    within("another has it", queue.next()).await;

    let process = Pid::from_raw(program.id().unwrap().try_into().unwrap());
    kill(process, Signal::SIGTERM).unwrap();
    let output = within("it ends", program.wait_with_output()).await.unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{told}");
    assert!(
        told.contains("consumer t-DN/all was missing: created"),
        "{told}"
    );
    assert!(!told.contains("secret"), "{told}");
}

/// Goes on to the line that has `text`.
async fn until_told(told: &mut Lines<BufReader<ChildStderr>>, text: &str) -> String {
    within(text, async {
        loop {
            let line = told.next_line().await.unwrap();
            let line = line.unwrap_or_else(|| panic!("it ended before it told: {text}"));
            if line.contains(text) {
                return line;
            }
        }
    })
    .await
}

#[tokio::test]
async fn without_its_system_account_it_keeps_the_streams_and_tries_again() {
    let broker = Broker::start_with_system_account();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("system.nk");
    let system_url = broker.system_url();
    let (user, address) = system_url
        .trim_start_matches("nats://")
        .split_once('@')
        .unwrap();
    let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_fresco"));
    program.args(["watch", "--prefix", "t", "--nats-url", &broker.url()]);
    program.args(["--system-url", &format!("nats://{address}")]);
    // Nobody tells it what to log: it is no command that somebody waits for.
    program
        .arg("--system-credentials")
        .arg(&file)
        .args(["--log-format", "json"]);
    program.stderr(Stdio::piped()).kill_on_drop(true);
    let mut program = program.spawn().unwrap();
    let mut told = BufReader::new(program.stderr.take().unwrap()).lines();
    let line = until_told(&mut told, "no system account").await;
    let warning: serde_json::Value = serde_json::from_str(&line).expect(&line);
    assert_eq!(warning["level"], "WARN");
    let bus = connect(&broker.url()).await;
    let topology = Topology::new(&prefix());
    until("the streams are there", || async {
        bus.verify(&topology).await.ok()
    })
    .await;
    std::fs::write(&file, user).unwrap();
    until_told(&mut told, "watching the connections").await;
    let process = Pid::from_raw(program.id().unwrap().try_into().unwrap());
    kill(process, Signal::SIGTERM).unwrap();
    assert!(within("it ends", program.wait()).await.unwrap().success());
}

#[tokio::test]
async fn the_end_of_the_terminal_leaves_one_that_was_started_to_outlive_it() {
    let broker = Broker::start_with_system_account();
    let mut program = tokio::process::Command::new("/bin/sh");
    // As `nohup` does.
    program.args([
        "-c",
        "trap '' HUP; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_fresco"),
    ]);
    program.args(["watch", "--prefix", "t", "--nats-url", &broker.url()]);
    let mut program = program.kill_on_drop(true).spawn().unwrap();
    let bus = connect(&broker.url()).await;
    let topology = Topology::new(&prefix());
    let keeps = || async { bus.verify(&topology).await.ok() };
    until("it is there", keeps).await;
    let process = Pid::from_raw(program.id().unwrap().try_into().unwrap());
    kill(process, Signal::SIGHUP).unwrap();
    request_raw(&broker, "$JS.API.STREAM.DELETE.t-DN");
    until("it goes on", keeps).await;
    kill(process, Signal::SIGTERM).unwrap();
    assert!(within("it ends", program.wait()).await.unwrap().success());
}

#[tokio::test]
async fn a_deleted_consumer_comes_back_and_is_worked_on() {
    let site = Site::start().await;
    let (_worker, mut queue) = join(&site.broker.url()).await;
    let (bus, topology) = (site.bus.clone(), site.topology.clone());
    let (told, mut news) = tokio::sync::mpsc::channel(8);
    TaskTracker::new().spawn(async move {
        keeper::keep(&bus, &topology, |news| {
            told.try_send(news.to_string()).unwrap()
        })
        .await;
    });
    let consumer = &site.topology.denoise_consumer;
    let request = format!(
        "$JS.API.CONSUMER.DELETE.{}.{}",
        consumer.stream, consumer.name
    );
    // The second time after the keeper has looked: it looks again.
    for _ in 0..2 {
        request_raw(&site.broker, &request);
        let deleted = Instant::now();
        let line = within("it is told", news.recv()).await.unwrap();
        println!("back after {:?}: {line}", deleted.elapsed());
        assert_eq!(line, "consumer t-DN/all was missing: created");
    }
    site.bus.verify(&site.topology).await.unwrap();
    site.enqueue(1).await;
    within("the job comes", queue.next()).await;
}

/// A request past our code, which cannot delete.
fn request_raw(broker: &Broker, subject: &str) {
    let address = broker.url().replace("nats://", "");
    let mut stream = TcpStream::connect(address).unwrap();
    write!(
        stream,
        "CONNECT {{\"verbose\":false}}\r\nPUB {subject} answer 0\r\n\r\nPING\r\n"
    )
    .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(stream));
    assert!(lines.any(|line| line.unwrap() == "PONG"));
}
