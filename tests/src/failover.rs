//! How long a job is without a worker after its own went away, measured over and over.

use std::{fmt, time::Duration};

use messaging::{Bus, BusConfig};
use nix::sys::signal::Signal;
use protocol::{
    JobId, OutputId, OutputState, Prefix, Role, UnixMillis, WorkerId, WorkerState,
    limits::PROGRESS_PER_ACK_WAIT, topology::Topology,
};
use replay::{ArTimes, DenoiseTimes, Table};
use reqwest::{Client, Method};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::{
    chaos::pauses::now_ms,
    cluster::{self, Cluster},
    fleet::until,
    free_port, http,
    process::Process,
    recipe::{Deployment, Recipe},
};

/// Short, so that fifty losses take minutes.
pub const ACK_WAIT: Duration = Duration::from_secs(3);

/// On top of a deadline or of nothing: to find out, to give the message over, to write the attempt down.
const GRACE: Duration = Duration::from_secs(1);

/// How a worker goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// kill -9, and nobody watches.
    Killed,
    /// kill -9, and `fresco watch` hears of it.
    KilledWatched,
    /// SIGTERM.
    Terminated,
    /// SIGSTOP: connected, but silent.
    Frozen,
}

impl Loss {
    /// Every way.
    pub const ALL: [Self; 4] = [
        Self::Killed,
        Self::KilledWatched,
        Self::Terminated,
        Self::Frozen,
    ];

    /// The promise.
    pub fn bound(self) -> Duration {
        match self {
            Self::Killed | Self::Frozen => ACK_WAIT + GRACE,
            Self::KilledWatched | Self::Terminated => GRACE,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Killed => "kill -9, nobody watches",
            Self::KilledWatched => "kill -9, fresco watch",
            Self::Terminated => "SIGTERM",
            Self::Frozen => "SIGSTOP",
        })
    }
}

/// A picture takes 6 s: long beside every failover. Steps of 100 ms, so that a cancelled one is soon over.
const TABLE: Table = Table {
    ar: ArTimes::new(&[(1, 6.0), (2, 7.0)], 261),
    denoise: DenoiseTimes {
        step_ms: 100.0,
        decode_ms: 1.0,
    },
};
const STEPS: u16 = 60;
const DENOISERS: usize = 3;
const JOB_TIMEOUT: Duration = Duration::from_secs(60);

/// A fleet whose denoisers are lost one at a time.
struct Bench {
    // Before the broker: processes end first.
    denoisers: Vec<(Recipe, Process)>,
    _others: Vec<Process>,
    bus: Bus,
    gateway: String,
    _cluster: Cluster,
    folder: TempDir,
}

/// From the loss until another worker has started on the job, `count` times.
pub async fn measure(loss: Loss, count: usize) -> Vec<Duration> {
    let mut bench = Bench::start(loss == Loss::KilledWatched).await;
    let mut gaps = Vec::with_capacity(count);
    for lost in 0..count {
        // Spread over a period between two signs of life: how long ago the last one was decides about the deadline.
        let period = ACK_WAIT / PROGRESS_PER_ACK_WAIT;
        let into = period.mul_f64(lost as f64 / count as f64);
        gaps.push(bench.lose(loss, into).await);
    }
    gaps
}

impl Bench {
    async fn start(watched: bool) -> Self {
        let folder = TempDir::with_prefix("fresco-failover-").expect("a temporary folder");
        let prefix: Prefix = "failover".parse().expect("allowed characters");
        let cluster = Cluster::start(1);
        let config = BusConfig::new(cluster.urls(), prefix.clone(), Role::Operator);
        let bus = Bus::connect(&config).await.expect("addresses are some");
        cluster::provision(&bus, &Topology::with_ack_wait(&prefix, ACK_WAIT)).await;

        let engine = (TABLE, Vec::new());
        let deployment = Deployment::new("failover", &cluster, ACK_WAIT, engine, folder.path());
        let port = free_port();
        let mut others = vec![
            deployment.gateway(0, port, JOB_TIMEOUT),
            deployment.worker(Role::ArBatcher, 0, 10),
        ];
        others.extend(watched.then(|| deployment.watcher(0)));
        let others = others.iter().map(|recipe| recipe.start(folder.path()));
        let denoisers = (0..DENOISERS).map(|number| {
            let recipe = deployment.worker(Role::Denoiser, number, 10);
            let process = recipe.start(folder.path());
            (recipe, process)
        });
        let bench = Self {
            denoisers: denoisers.collect(),
            _others: others.collect(),
            bus,
            gateway: format!("http://127.0.0.1:{port}"),
            _cluster: cluster,
            folder,
        };
        until("the gateway is ready", || async {
            let (status, _) = http::text(&format!("{}/readyz", bench.gateway)).await?;
            status.is_success().then_some(())
        })
        .await;
        bench
    }

    async fn lose(&mut self, loss: Loss, into: Duration) -> Duration {
        self.all_idle().await;
        let job = self.submit().await;
        let (victim, output, worker) = self.painter(job).await;
        sleep(into).await;
        let process = &mut self.denoisers[victim].1;
        let lost_at = now_ms();
        match loss {
            Loss::Killed | Loss::KilledWatched => process.kill(),
            Loss::Terminated => process.signal(Signal::SIGTERM),
            Loss::Frozen => process.signal(Signal::SIGSTOP),
        }
        let taken_at = self.taken_over(output, &worker).await;
        self.cancel(job).await;
        let (recipe, process) = &mut self.denoisers[victim];
        match loss {
            Loss::Frozen => process.signal(Signal::SIGCONT),
            Loss::Terminated => drop(process.end(Duration::from_secs(10)).await),
            Loss::Killed | Loss::KilledWatched => {}
        }
        if loss != Loss::Frozen {
            *process = recipe.start(self.folder.path());
        }
        let gap = i128::from(taken_at) - lost_at;
        Duration::from_millis(u64::try_from(gap).unwrap_or_default())
    }

    /// By the queue's own count: the presence of a dead worker stays for a while.
    async fn all_idle(&self) {
        until("every denoiser waits for work", || async {
            let queues = self.bus.queues().await.ok()?;
            let idle = queues.denoise.idle >= DENOISERS as u64 && queues.denoise.held == 0;
            idle.then_some(())
        })
        .await;
    }

    async fn submit(&self) -> JobId {
        let body = json!({
            "prompt": "a red fox", "size": "64x64", "seed": 7, "num_inference_steps": STEPS,
        });
        let request = Client::new()
            .post(format!("{}/v1/images/generations", self.gateway))
            .header("prefer", "respond-async");
        let response = request
            .json(&body)
            .send()
            .await
            .expect("the gateway answers");
        let job = response.headers().get("x-request-id").cloned();
        let job = job.unwrap_or_else(|| panic!("not accepted: {}", response.status()));
        job.to_str().expect("text").parse().expect("a job's id")
    }

    /// Which denoiser paints the job.
    async fn painter(&self, job: JobId) -> (usize, OutputId, WorkerId) {
        until("a denoiser paints", || async {
            let workers = self.bus.workers().await.ok()?;
            let worker = workers.into_iter().find(|worker| {
                worker.role == Role::Denoiser
                    && worker.state == WorkerState::Busy
                    && worker.held.iter().any(|held| held.output.job == job)
            })?;
            let mut denoisers = self.denoisers.iter();
            let index = denoisers.position(|(_, process)| process.id() == worker.process)?;
            Some((index, worker.held.first()?.output, worker.worker))
        })
        .await
    }

    /// When another worker started.
    async fn taken_over(&self, output: OutputId, lost: &WorkerId) -> UnixMillis {
        until("another denoiser paints", || async {
            let life = self.bus.life(output).await.ok()??;
            let last = life.attempts.last()?;
            let taken = life.state == OutputState::DenoiseRunning && last.worker != *lost;
            taken.then_some(last.started_at)
        })
        .await
    }

    async fn cancel(&self, job: JobId) {
        let url = format!("{}/v1/images/jobs/{job}", self.gateway);
        let cancelled = Client::new().request(Method::DELETE, url).send().await;
        assert!(
            cancelled
                .expect("the gateway answers")
                .status()
                .is_success()
        );
    }
}

/// The line of a table.
pub fn line(loss: Loss, gaps: &[Duration]) -> String {
    let mut sorted = gaps.to_vec();
    sorted.sort();
    let at = |percent: usize| {
        let place = sorted.len().saturating_sub(1) * percent / 100;
        sorted.get(place).copied().unwrap_or_default().as_secs_f64()
    };
    format!(
        "{:<26} {:>5} {:>8.3} {:>8.3} {:>8.3} {:>8.3} {:>8.3}",
        loss.to_string(),
        gaps.len(),
        at(0),
        at(50),
        at(90),
        at(100),
        loss.bound().as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_spread_of_its_gaps() {
        let gaps: Vec<_> = (1..=11)
            .rev()
            .map(|n| Duration::from_millis(100 * n))
            .collect();
        let line = line(Loss::Terminated, &gaps);
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            words,
            ["SIGTERM", "11", "0.100", "0.600", "1.000", "1.100", "1.000"]
        );
    }
}
