//! A worker to kill: a process of its own that holds what it gets for ever. It is this test's own program, started
//! once more with one ignored test.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "every test binary uses its part of the harness"
)]
#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

use std::{
    io::{BufRead, Write},
    process::{Child, Command, Stdio},
    time::Duration,
};

use clap::Parser as _;
use messaging::{Access, Bus, BusConfig, Joining, Membership, WorkQueue};
use protocol::{
    CurrentWork, DenoiseJob, DenoiseParameters, ImageFormat, ImageSize, JobId, OutputIndex, Prefix,
    PriorTokens, PriorUsage, Role, Seed, Subject, WorkerId, WorkerPresence, WorkerState,
};
use service::{Health, ShellArgs, Shutdown, metrics::Metrics};
use tokio_util::task::TaskTracker;

/// A role's, as they are without any.
#[derive(clap::Parser)]
struct Flags {
    #[command(flatten)]
    shell: ShellArgs,
}

/// The arguments under which the test's program is a worker; the URL of its broker comes on stdin.
pub const ARGUMENTS: [&str; 4] = ["--exact", "worker::process", "--ignored", "--nocapture"];

#[tokio::test]
#[ignore = "a worker for other tests, which start it"]
async fn process() {
    let mut url = String::new();
    std::io::stdin().lock().read_line(&mut url).unwrap();
    if url.is_empty() {
        return;
    }
    let (shutdown, health) = (Shutdown::default(), Health::new());
    health.set_ready();
    let metrics = Metrics::new(Role::Denoiser);
    let shell = Flags::parse_from(["worker"]).shell;
    let address = service::health::serve(&shell, health, metrics, &shutdown, &shutdown.token);
    let joining = Joining {
        health_address: address.await.unwrap(),
        host: service::host::name(),
        ..joining(url.trim())
    };
    let member = Membership::join(joining, &shutdown.tracker, |_| {})
        .await
        .unwrap();
    let mut queue = open(&member, &shutdown.tracker).await;
    let mut held = Vec::new();
    loop {
        held.push(hold(&member, &mut queue).await);
    }
}

pub fn joining(url: &str) -> Joining {
    Joining {
        name: WorkerId::generate(Role::Denoiser),
        urls: vec![url.to_owned()],
        access: Access::default(),
        prefix: prefix(),
        role: Role::Denoiser,
        device: "cpu".to_owned(),
        model_revision: "none".to_owned(),
        host: "elsewhere".to_owned(),
        health_address: ([127, 0, 0, 1], 1).into(),
    }
}

/// Takes the next message and says so, as a denoiser does.
pub async fn hold(member: &Membership, queue: &mut WorkQueue) -> messaging::Delivery {
    let delivery = queue.next().await;
    let Subject::Denoise(_, output) = delivery.subject else {
        panic!("{} in the denoise queue", delivery.subject)
    };
    let work = CurrentWork {
        output,
        ack_subject: delivery.lease.ack_subject(),
        since: service::clock::unix_millis(),
    };
    member.presence.update(|now| {
        now.state = WorkerState::Busy;
        now.held.push(work);
    });
    delivery
}

pub fn prefix() -> Prefix {
    "t".parse().unwrap()
}

pub async fn connect(url: &str) -> Bus {
    let config = BusConfig::new(vec![url.to_owned()], prefix(), Role::Operator);
    let bus = Bus::connect(&config).await.unwrap();
    within("connected", bus.connected()).await;
    bus
}

/// A process that is a worker; ends with the test.
pub struct Worker(Child);

impl Worker {
    pub fn start(url: &str) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(ARGUMENTS)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = process.stdin.take().unwrap();
        writeln!(stdin, "{url}").unwrap();
        Self(process)
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // Already ended, or ends now: both are fine.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A worker in this process.
pub async fn join(url: &str) -> (Membership, WorkQueue) {
    let tracker = TaskTracker::new();
    let joined = Membership::join(joining(url), &tracker, |_| {});
    let member = Box::pin(within("it joins", joined)).await.unwrap();
    let queue = open(&member, &tracker).await;
    (member, queue)
}

async fn open(member: &Membership, tracker: &TaskTracker) -> WorkQueue {
    let consumer = &member.bus.topology().denoise_consumer;
    member.open(consumer, tracker).await.unwrap()
}

/// Waits until `count` workers hold something; says which.
pub async fn until_busy(bus: &Bus, count: usize) -> Vec<WorkerPresence> {
    until("workers are busy", || async {
        let mut workers = bus.workers().await.ok()?;
        workers.retain(|worker| !worker.held.is_empty());
        (workers.len() == count).then_some(workers)
    })
    .await
}

pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let asking = async {
        loop {
            match ask().await {
                Some(answer) => return answer,
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    within(what, asking).await
}

/// A test that waits for something that never comes fails with its name.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(40), future).await {
        Ok(value) => value,
        Err(_) => panic!("not within 40 s: {what}"),
    }
}

pub fn denoise_job(job: u128) -> DenoiseJob {
    DenoiseJob {
        output: JobId::from_u128(job).output(OutputIndex::FIRST),
        prompt: "a secret fox".to_owned(),
        seed: Seed::new(7).unwrap(),
        size: ImageSize::new(64, 32).unwrap(),
        format: ImageFormat::Png,
        denoise: DenoiseParameters::new(8, 1.5).unwrap(),
        prior: PriorTokens::new(1, 2, vec![1, 2]).unwrap(),
        usage: PriorUsage {
            prompt_tokens: 3,
            generated_tokens: 3,
            cached: false,
        },
        prior_id: None,
        life: None,
        accepted_at: 1_000,
        ar_started_at: 1_000,
        ar_finished_at: 1_000,
        deadline_at: 61_000,
    }
}
