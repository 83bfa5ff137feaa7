//! What every process measures, and what every worker does.

use std::time::Duration;

use protocol::WorkerState;
use tokio::runtime::{Handle, RuntimeMetrics};

use super::{
    Counter, Gauge, Labelled, Metrics, SecondsCounter, Told,
    catalog::{
        BROKER_CONNECTED, BROKER_CONNECTIONS, BUILD_INFO, INFLIGHT, LIBTORCH_MEMORY,
        LIBTORCH_MEMORY_PEAK, MESSAGES_UNTRACED, METRIC_POINTS_LOST, METRIC_PUSHES, OUTPUTS_DEAD,
        PROCESS_START, QUARANTINES, REDELIVERIES, RESIDENT_MEMORY, RESULTS_SUPPRESSED,
        RUNTIME_BUSY, RUNTIME_QUEUE_DEPTH, RUNTIME_TASKS, RUNTIME_THREADS, SPANS_LOST, SPANS_SENT,
        TRANSITIONS_REFUSED, WORKER_INFO, WORKER_STATE,
    },
    number, raise,
};
use crate::{
    clock::unix_millis,
    telemetry::{
        ExportState, export_state,
        push::{PushState, push_state},
    },
};

/// Of any process.
#[derive(Debug, Clone)]
pub struct Process {
    /// None before anybody knows: a worker that loads its model has not asked for the broker yet.
    connected: Labelled<Gauge, 0>,
    connections: Counter,
}

impl Process {
    /// Tells what runs, and how much memory it has at each scrape.
    pub fn register(metrics: &Metrics) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        metrics
            .told(BUILD_INFO)
            .tell([metrics.role().to_string(), version]);
        let since_1970 = Duration::from_millis(unix_millis());
        metrics.gauge(PROCESS_START).set(since_1970.as_secs_f64());
        let resident = metrics.gauge(RESIDENT_MEMORY);
        let (spans, runtime) = (Spans::register(metrics), Runtime::register(metrics));
        let pushes = Pushes::register(metrics);
        metrics.before_scrapes(move || {
            if let Some(bytes) = resident_bytes() {
                resident.set(number(bytes));
            }
            spans.tell(export_state());
            pushes.tell(push_state());
            runtime.tell(&Handle::current().metrics());
            std::future::ready(())
        });
        Self {
            connected: metrics.gauges(BROKER_CONNECTED),
            connections: metrics.counter(BROKER_CONNECTIONS),
        }
    }

    /// Whether the broker is there, and how often it has been reached.
    pub fn connection(&self, up: bool, connections: u64) {
        self.connected.of([]).set(u8::from(up).into());
        raise(&self.connections, connections);
    }
}

/// How tokio does.
struct Runtime {
    threads: Gauge,
    tasks: Gauge,
    queue_depth: Gauge,
    busy: SecondsCounter,
}

impl Runtime {
    fn register(metrics: &Metrics) -> Self {
        Self {
            threads: metrics.gauge(RUNTIME_THREADS),
            tasks: metrics.gauge(RUNTIME_TASKS),
            queue_depth: metrics.gauge(RUNTIME_QUEUE_DEPTH),
            busy: metrics.seconds(RUNTIME_BUSY),
        }
    }

    fn tell(&self, now: &RuntimeMetrics) {
        let threads = now.num_workers();
        self.threads.set(number(threads as u64));
        self.tasks.set(number(now.num_alive_tasks() as u64));
        self.queue_depth
            .set(number(now.global_queue_depth() as u64));
        let busy = (0..threads).map(|thread| now.worker_total_busy_duration(thread));
        let busy = busy.sum::<Duration>().as_secs_f64();
        self.busy.inc_by((busy - self.busy.get()).max(0.0));
    }
}

/// What became of the spans of a process.
struct Spans {
    sent: Counter,
    refused: Counter,
    queue_full: Counter,
}

impl Spans {
    fn register(metrics: &Metrics) -> Self {
        let lost = metrics.counters(SPANS_LOST);
        let [refused, queue_full] = ["refused", "queue_full"].map(|reason| lost.of([reason]));
        Self {
            sent: metrics.counter(SPANS_SENT),
            refused,
            queue_full,
        }
    }

    fn tell(&self, now: ExportState) {
        raise(&self.sent, now.sent);
        raise(&self.refused, now.refused);
        raise(&self.queue_full, now.queue_full);
    }
}

/// What became of the metrics that a process pushes.
struct Pushes {
    taken: Counter,
    partial: Counter,
    failed: Counter,
    points_lost: Counter,
}

impl Pushes {
    fn register(metrics: &Metrics) -> Self {
        let pushes = metrics.counters(METRIC_PUSHES);
        let [taken, partial, failed] =
            ["taken", "partial", "failed"].map(|outcome| pushes.of([outcome]));
        Self {
            taken,
            partial,
            failed,
            points_lost: metrics.counter(METRIC_POINTS_LOST),
        }
    }

    fn tell(&self, now: PushState) {
        raise(&self.taken, now.taken);
        raise(&self.partial, now.partial);
        raise(&self.failed, now.failed);
        raise(&self.points_lost, now.points_lost);
    }
}

/// The memory of this process that is in RAM, where Linux tells.
fn resident_bytes() -> Option<u64> {
    resident_bytes_in(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn resident_bytes_in(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Of an engine on libtorch: the memory of its tensors, by stage. Without one there are no series.
#[derive(Debug, Clone)]
pub struct LibtorchMemory {
    live: Labelled<Gauge, 1>,
    peak: Labelled<Gauge, 1>,
}

impl LibtorchMemory {
    fn register(metrics: &Metrics) -> Self {
        Self {
            live: metrics.gauges(LIBTORCH_MEMORY),
            peak: metrics.gauges(LIBTORCH_MEMORY_PEAK),
        }
    }

    /// `stage` has ended with so many bytes of tensors, and had at most so many.
    pub fn ended(&self, stage: &'static str, live: u64, peak: u64) {
        self.live.of([stage]).set(number(live));
        self.peak.of([stage]).set(number(peak));
    }
}

/// Of a worker.
#[derive(Debug, Clone)]
pub struct Worker {
    info: Told<4>,
    state: Labelled<Gauge, 1>,
    stage: &'static str,
    redeliveries: Labelled<Counter, 2>,
    /// Messages without the trace of who stored them.
    pub untraced: Counter,
    /// Outputs on its engines.
    pub inflight: Gauge,
    /// Given up.
    pub dead: Counter,
    /// Results that came second.
    pub suppressed: Counter,
    /// Events that could not follow.
    pub refused: Counter,
    /// Times it took itself out.
    pub quarantines: Counter,
    /// Of its engine.
    pub memory: LibtorchMemory,
}

/// What a worker can be.
pub const STATES: [WorkerState; 5] = [
    WorkerState::Loading,
    WorkerState::Idle,
    WorkerState::Busy,
    WorkerState::Quarantined,
    WorkerState::Draining,
];

/// A state as a label has it.
pub const fn state_label(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Loading => "loading",
        WorkerState::Idle => "idle",
        WorkerState::Busy => "busy",
        WorkerState::Quarantined => "quarantined",
        WorkerState::Draining => "draining",
    }
}

impl Worker {
    /// Of `stage`, loading, and unnamed. What it gets may come again for these `reasons`.
    pub fn register<const N: usize>(
        metrics: &Metrics,
        stage: &'static str,
        reasons: [&'static str; N],
    ) -> Self {
        let redeliveries = metrics.counters(REDELIVERIES);
        let worker = Self {
            info: metrics.told(WORKER_INFO),
            state: metrics.gauges(WORKER_STATE),
            stage,
            redeliveries: redeliveries.from_zero(reasons.map(|reason| [stage, reason])),
            untraced: metrics.counter(MESSAGES_UNTRACED),
            inflight: metrics.gauges(INFLIGHT).of([stage]),
            dead: metrics.counter(OUTPUTS_DEAD),
            suppressed: metrics.counter(RESULTS_SUPPRESSED),
            refused: metrics.counter(TRANSITIONS_REFUSED),
            quarantines: metrics.counter(QUARANTINES),
            memory: LibtorchMemory::register(metrics),
        };
        worker.state(WorkerState::Loading);
        worker
    }

    /// Who it is.
    pub fn name(&self, worker: &str, host: &str, device: &str, model_revision: &str) {
        let values = [worker, host, device, model_revision];
        self.info.tell(values.map(str::to_owned));
    }

    /// How it is.
    pub fn state(&self, now: WorkerState) {
        for state in STATES {
            let is_now = u8::from(state == now);
            self.state.of([state_label(state)]).set(is_now.into());
        }
    }

    /// A message came again, for one of its reasons.
    pub fn redelivered(&self, reason: &'static str) {
        self.redeliveries.of([self.stage, reason]).inc();
    }
}

#[cfg(test)]
mod tests {
    use protocol::Role;

    use super::*;

    #[test]
    fn memory_is_read_where_linux_writes_it() {
        let status = "Name:\tx\nVmRSS:\t    5136 kB\nRssAnon:\t1 kB\n";
        assert_eq!(resident_bytes_in(status), Some(5136 * 1024));
        assert_eq!(resident_bytes_in("Name:\tx\n"), None);
    }

    #[test]
    fn a_process_that_has_not_asked_for_its_broker_does_not_say_that_it_is_without() {
        let metrics = Metrics::new(Role::Denoiser);
        let process = Process::register(&metrics);
        let told = || {
            let text = metrics.exposition().unwrap();
            let lines = text.lines().map(str::to_owned);
            lines
                .filter(|line| line.starts_with("fresco_broker_connected"))
                .collect::<Vec<_>>()
        };
        assert!(told().is_empty());
        process.connection(false, 0);
        assert_eq!(told(), ["fresco_broker_connected 0.0"]);
        process.connection(true, 1);
        assert_eq!(told(), ["fresco_broker_connected 1.0"]);
    }

    #[tokio::test]
    async fn a_scrape_says_how_the_runtime_does() {
        let metrics = Metrics::new(Role::Gateway);
        Process::register(&metrics);
        let text = metrics.scrape().await.unwrap();
        assert!(text.contains("\nfresco_runtime_threads 1.0\n"), "{text}");
        let busy = text
            .lines()
            .find_map(|line| line.strip_prefix("fresco_runtime_busy_seconds_total "));
        assert!(
            busy.is_some_and(|busy| busy.parse::<f64>().is_ok()),
            "{text}"
        );
    }

    #[test]
    fn a_worker_is_in_one_state() {
        let metrics = Metrics::new(Role::Denoiser);
        let worker = Worker::register(&metrics, "denoise", ["lost"]);
        worker.state(WorkerState::Busy);
        let text = metrics.exposition().unwrap();
        let states = text
            .lines()
            .filter(|line| line.starts_with("fresco_worker_state{"));
        let (on, off): (Vec<_>, Vec<_>) = states.partition(|line| line.ends_with(" 1.0"));
        assert_eq!(on, ["fresco_worker_state{state=\"busy\"} 1.0"]);
        assert_eq!(off.len(), STATES.len() - 1);
    }
}
