//! Every metric there is, once: name, type, unit, labels, buckets, who has it. Roles register by these constants, and
//! `observability/metrics.md`, dashboards and alerts are held to them by tests.
//!
//! A label has a closed set of values: no job, no prompt, no client. Two counters rather than a gauge that jumps.

use std::collections::BTreeSet;

use protocol::Role;

/// How a metric counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only grows; its sample has `_total` behind its name.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by upper bounds.
    Histogram(&'static [f64]),
}

impl Kind {
    /// As Prometheus calls it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spec {
    /// Its name, with its unit where it has one; without `_total`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// What it says, without a full stop.
    pub help: &'static str,
    /// The names of its labels, in their order.
    pub labels: &'static [&'static str],
    /// Who has it.
    pub roles: &'static [Role],
}

impl Spec {
    /// The names of its samples.
    pub fn samples(&self) -> Vec<String> {
        let with = |suffix| format!("{}{suffix}", self.name);
        match self.kind {
            Kind::Counter => vec![with("_total")],
            Kind::Gauge => vec![with("")],
            Kind::Histogram(_) => ["_bucket", "_sum", "_count"].map(with).to_vec(),
        }
    }

    /// Whether its observations name their traces: those of jobs and outputs, which the gateway makes.
    pub fn is_traced(&self) -> bool {
        matches!(self.kind, Kind::Histogram(_)) && self.roles == [Role::Gateway]
    }

    /// Its unit, which its name ends with.
    pub fn unit(&self) -> Option<&'static str> {
        let ends = |unit: &&str| self.name.ends_with(&format!("_{unit}"));
        ["seconds", "bytes"].into_iter().find(ends)
    }
}

/// A picture takes seconds to minutes, a job ten minutes by default; OpenTelemetry's advice for HTTP ends at 10 s.
const JOB_SECONDS: &[f64] = &[
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0, 90.0, 120.0, 180.0, 240.0,
    300.0, 450.0, 600.0,
];

/// A step takes 50 ms on a large device and seconds on a CPU; a cancelled one is heard of after one step.
const STEP_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// What is not measured, and what storing takes, should be milliseconds.
const REST_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0,
];

/// Rows of one engine call: an engine has 1 to 128 slots.
const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0];

/// Shares.
const TENTHS: &[f64] = &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

const ALL_ROLES: &[Role] = &[Role::Gateway, Role::ArBatcher, Role::Denoiser];
const WORKERS: &[Role] = &[Role::ArBatcher, Role::Denoiser];
const GATEWAY: &[Role] = &[Role::Gateway];
const BATCHER: &[Role] = &[Role::ArBatcher];
const DENOISER: &[Role] = &[Role::Denoiser];

/// The table: each line is a constant and a row of [`ALL`].
macro_rules! catalog {
    ($($id:ident = $kind:expr, $name:literal, [$($label:literal),*], $roles:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $id: Spec = Spec {
                name: $name,
                kind: $kind,
                help: $help,
                labels: &[$($label),*],
                roles: $roles,
            };
        )*

        /// Every metric.
        pub const ALL: &[Spec] = &[$($id),*];
    };
}

use Kind::{Counter, Gauge, Histogram};

catalog! {
    // Of every process.
    BUILD_INFO = Gauge, "fresco_build_info", ["role", "version"], ALL_ROLES,
        "Always 1; its labels say what runs";
    PROCESS_START = Gauge, "fresco_process_start_time_seconds", [], ALL_ROLES,
        "When the process started, since 1970: it changes where one that ended is started again";
    RESIDENT_MEMORY = Gauge, "fresco_process_resident_memory_bytes", [], ALL_ROLES,
        "Memory of the process that is in RAM; a model on a CPU is part of it";
    BROKER_CONNECTED = Gauge, "fresco_broker_connected", [], ALL_ROLES,
        "Whether the process is connected to the message broker; absent while a worker loads its model";
    BROKER_CONNECTIONS = Counter, "fresco_broker_connections", [], ALL_ROLES,
        "Connections to the message broker; the first one counts too";
    RUNTIME_THREADS = Gauge, "fresco_runtime_threads", [], ALL_ROLES,
        "Threads that tasks run on, besides those of a device";
    RUNTIME_TASKS = Gauge, "fresco_runtime_tasks", [], ALL_ROLES,
        "Tasks that are alive";
    RUNTIME_QUEUE_DEPTH = Gauge, "fresco_runtime_queue_depth", [], ALL_ROLES,
        "Tasks that could run and wait for a thread, in the queue that all threads share";
    RUNTIME_BUSY = Counter, "fresco_runtime_busy_seconds", [], ALL_ROLES,
        "Time that the threads ran tasks, all together";
    SPANS_SENT = Counter, "fresco_spans_sent", [], ALL_ROLES,
        "Spans that the collector took";
    SPANS_LOST = Counter, "fresco_spans_lost", ["reason"], ALL_ROLES,
        "Spans that no collector got: refused by it, or queue_full, because it was too slow for them";
    METRIC_PUSHES = Counter, "fresco_metric_pushes", ["outcome"], ALL_ROLES,
        "Pushes of all metrics to a collector: taken by it, partial, where it refused some points, or failed";
    METRIC_POINTS_LOST = Counter, "fresco_metric_points_lost", [], ALL_ROLES,
        "Points of metrics that the collector refused of the pushes that are partial";

    // What goes in and comes out.
    JOBS_ACCEPTED = Counter, "fresco_jobs_accepted", [], GATEWAY,
        "Requests queued";
    OUTPUTS_ACCEPTED = Counter, "fresco_outputs_accepted", [], GATEWAY,
        "Outputs of queued requests";
    OUTPUTS_ENDED = Counter, "fresco_outputs_ended", [], GATEWAY,
        "Outputs accepted here that ended, or whose end this gateway did not wait for";
    OUTPUTS_REFUSED = Counter, "fresco_outputs_refused", [], GATEWAY,
        "Outputs of requests refused for want of room";
    OUTPUTS_EXPIRED = Counter, "fresco_outputs_expired", [], GATEWAY,
        "Outputs ended here at their deadline";
    DEADLINE_MISSED = Counter, "fresco_deadline_missed", [], GATEWAY,
        "Outputs of jobs accepted here that ended at their deadline, ours or a sooner one of their clients, whoever ended them";
    JOBS_CANCELLED = Counter, "fresco_jobs_cancelled", [], GATEWAY,
        "Requests of which this gateway cancelled something";
    IDEMPOTENT_JOINS = Counter, "fresco_idempotent_joins", [], GATEWAY,
        "Requests that joined an earlier one by their key";
    REJECTIONS = Counter, "fresco_rejections", ["reason"], GATEWAY,
        "Requests for pictures that were refused, or not queued for certain, by error code";

    // What each tenant gets; what it costs is with the denoisers. Of jobs accepted here, and that ended while this gateway followed them.
    TENANT_JOBS = Counter, "fresco_tenant_jobs", ["tenant", "outcome"], GATEWAY,
        "Requests that ended, by whose they were: a name of `--tenants`, or none";
    TENANT_IMAGES = Counter, "fresco_tenant_images", ["tenant"], GATEWAY,
        "Pictures finished, by tenant";
    TENANT_QUEUE_WAIT = Histogram(JOB_SECONDS), "fresco_tenant_queue_wait_seconds", ["tenant"], GATEWAY,
        "What a finished picture waited for both stages, by tenant";
    TENANT_OUTPUTS_OPEN = Gauge, "fresco_tenant_outputs_open", ["tenant"], GATEWAY,
        "Outputs that have not ended, by tenant";
    TENANT_REJECTIONS = Counter, "fresco_tenant_rejections", ["tenant"], GATEWAY,
        "Requests for pictures that were refused, or not queued for certain, by tenant; without a good key: none";

    // Where the time goes. Of jobs accepted here, and that ended while this gateway followed them.
    JOB_DURATION = Histogram(JOB_SECONDS), "fresco_job_duration_seconds",
        ["outcome", "size_class", "class"], GATEWAY,
        "From accepting a request to the end of its last output, by the worst of their outcomes; size classes end at 512, 1024 and 1536 pixels squared; jobs of a gateway that dies are missing";
    OUTPUT_DURATION = Histogram(JOB_SECONDS), "fresco_output_duration_seconds", ["outcome"], GATEWAY,
        "From accepting a request to the end of each output: done, cancelled, refused for what it asked, expired, expired_early at a deadline that its client set sooner than ours, failed, also where the broker did not tell at the deadline; outputs of a gateway that dies are missing";
    STAGE_WAIT = Histogram(JOB_SECONDS), "fresco_stage_wait_seconds", ["stage"], GATEWAY,
        "What a finished picture waited for a stage: ar, denoise, or as a result for its gateway; denoise begins with its prior tokens, so what storing its message took is part of it: fresco_ar_store_seconds";
    STAGE_RUN = Histogram(JOB_SECONDS), "fresco_stage_run_seconds", ["stage"], GATEWAY,
        "What a stage took for a finished picture: ar, denoise, decode; and cached instead of ar where its prior tokens were stored or came along";
    UNATTRIBUTED = Histogram(REST_SECONDS), "fresco_unattributed_seconds", [], GATEWAY,
        "By how much the stamps of a finished picture miss what its gateway took by a clock of its own, or exceed it: clocks that differ, and nothing else; what no stage measures is in the wait for the next one";

    // The queues, as the broker has them. Each gateway tells the same: take the maximum over gateways.
    QUEUE_DEPTH = Gauge, "fresco_queue_depth", ["stage", "class"], GATEWAY,
        "Messages that wait for a worker: requests at ar, outputs at denoise, which has one queue for all classes";
    QUEUE_HELD = Gauge, "fresco_queue_held", ["stage", "class"], GATEWAY,
        "Messages with a worker, or given back and resting";
    QUEUE_HELD_MAX = Gauge, "fresco_queue_held_max", ["stage", "class"], GATEWAY,
        "Messages that workers may hold at once: beyond it the broker hands out none";
    QUEUE_REDELIVERED = Gauge, "fresco_queue_redelivered", ["stage", "class"], GATEWAY,
        "Messages in the queue that were delivered more than once";
    QUEUE_IDLE_PULLS = Gauge, "fresco_queue_idle_pulls", ["stage", "class"], GATEWAY,
        "Workers that wait for a message";
    QUEUE_OLDEST = Gauge, "fresco_queue_oldest_seconds", ["stage", "class"], GATEWAY,
        "Age of the oldest message that waits for a worker; 0 where none does; what batchers hold is not among them: fresco_ar_oldest_waiting_seconds";
    QUEUE_ETA = Gauge, "fresco_queue_eta_seconds", ["class"], GATEWAY,
        "Forecast of what an output accepted now waits for what is queued or held, at the rate measured lately; absent before one was; a request counts as the mean number of outputs of those accepted here";
    OUTPUTS_OPEN = Gauge, "fresco_outputs_open", [], GATEWAY,
        "Outputs accepted here that have not ended";
    DEAD_LETTER_DEPTH = Gauge, "fresco_dead_letter_depth", [], GATEWAY,
        "Dead letters: outputs given up that nobody has replayed or dropped";
    DEAD_LETTER_OLDEST = Gauge, "fresco_dead_letter_oldest_seconds", [], GATEWAY,
        "Age of the oldest dead letter; 0 where there is none";
    STREAM_MESSAGES = Gauge, "fresco_stream_messages", ["stream"], GATEWAY,
        "Messages in a stream or bucket of the broker";
    STREAM_MAX_MESSAGES = Gauge, "fresco_stream_max_messages", ["stream"], GATEWAY,
        "Messages that a stream or bucket of the broker may hold; absent without a limit";
    STREAM_BYTES = Gauge, "fresco_stream_bytes", ["stream"], GATEWAY,
        "What a stream or bucket of the broker holds";
    STREAM_MAX_BYTES = Gauge, "fresco_stream_max_bytes", ["stream"], GATEWAY,
        "What a stream or bucket of the broker may hold";
    WORKERS_BY_STATE = Gauge, "fresco_workers", ["role", "state"], GATEWAY,
        "Workers that show signs of life, as the gateway sees them: take the average over gateways";
    BROKER_LOOKS_FAILED = Counter, "fresco_broker_looks_failed", [], GATEWAY,
        "Scrapes for which the broker did not say how its queues are: they are absent then";

    // Workers.
    WORKER_INFO = Gauge, "fresco_worker_info", ["worker", "host", "device", "model_revision"], WORKERS,
        "Always 1; its labels say which worker this process is; absent while it loads its model";
    WORKER_STATE = Gauge, "fresco_worker_state", ["state"], WORKERS,
        "1 for the state that the worker is in, 0 for the others";
    INFLIGHT = Gauge, "fresco_inflight", ["stage"], WORKERS,
        "Outputs that run on this worker's engines";
    REDELIVERIES = Counter, "fresco_redeliveries", ["stage", "reason"], WORKERS,
        "Messages that came once more, by what became of the attempt before: lost, failed, given_back, or untouched";
    MESSAGES_UNTRACED = Counter, "fresco_messages_untraced", [], WORKERS,
        "Messages that came without the trace of who stored them: what became of them is a trace of its own";
    OUTPUTS_DEAD = Counter, "fresco_outputs_dead", [], WORKERS,
        "Outputs given up as dead letters";
    RESULTS_SUPPRESSED = Counter, "fresco_results_suppressed", [], WORKERS,
        "Results that were second and dropped";
    TRANSITIONS_REFUSED = Counter, "fresco_transitions_refused", [], WORKERS,
        "Events that could not follow in an output's life";
    QUARANTINES = Counter, "fresco_quarantines", [], WORKERS,
        "Times the worker took itself out because its engine failed in a row";
    LIBTORCH_MEMORY = Gauge, "fresco_libtorch_memory_bytes", ["stage"], WORKERS,
        "Tensors on the device, weights included, at the end of a stage of the last job: prefill, decode, prepare, denoise, vae_decode; absent without libtorch";
    LIBTORCH_MEMORY_PEAK = Gauge, "fresco_libtorch_memory_peak_bytes", ["stage"], WORKERS,
        "The most at once during that stage";

    // AR.
    AR_ENGINE_CALLS = Counter, "fresco_ar_engine_calls", [], BATCHER,
        "Batches that an AR engine took";
    AR_ROWS_STARTED = Counter, "fresco_ar_rows_started", [], BATCHER,
        "Outputs that an AR engine took";
    AR_ROWS_FINISHED = Counter, "fresco_ar_rows_finished", [], BATCHER,
        "Outputs whose prior tokens an AR engine wrote; those that were stored, or came along, are none";
    AR_ROWS_FAILED = Counter, "fresco_ar_rows_failed", [], BATCHER,
        "Rows that the AR engine failed at";
    AR_ROWS_WITHDRAWN = Counter, "fresco_ar_rows_withdrawn", [], BATCHER,
        "Outputs that ended, or were another batcher's, before the AR stage was done with them";
    AR_ROWS_WAITING = Gauge, "fresco_ar_rows_waiting", [], BATCHER,
        "Outputs that this batcher holds and that wait for an engine, or for room at the denoise stage";
    AR_OLDEST_WAITING = Gauge, "fresco_ar_oldest_waiting_seconds", [], BATCHER,
        "How long ago the oldest output was accepted that this batcher holds and that waits; 0 where none does";
    AR_SLOTS = Gauge, "fresco_ar_slots", [], BATCHER,
        "Outputs that may run on this batcher's engines at once";
    AR_BATCH_ROWS = Histogram(ROWS), "fresco_ar_batch_rows", [], BATCHER,
        "Outputs in one call that an AR engine took";
    AR_BATCH_FILL = Histogram(TENTHS), "fresco_ar_batch_fill_ratio", [], BATCHER,
        "Share of the slots that was taken when a call of the AR engine started";
    AR_DEVICE_BUSY = Counter, "fresco_ar_device_busy_seconds", [], BATCHER,
        "Time that the device of the native engine wrote prior tokens, token by token, its self-tests included; absent with other engines, whose devices are not ours to see";
    AR_STORE = Histogram(REST_SECONDS), "fresco_ar_store_seconds", [], BATCHER,
        "From an output's prior tokens to its stored denoise message, tries that the broker did not take included";
    PRIOR_CACHE_HITS = Counter, "fresco_prior_cache_hits", [], BATCHER,
        "Outputs whose prior tokens were stored already";
    PRIOR_CACHE_MISSES = Counter, "fresco_prior_cache_misses", [], BATCHER,
        "Outputs that an AR engine took because their prior tokens were not stored";
    PRIOR_CACHE_STORED = Counter, "fresco_prior_cache_stored", [], BATCHER,
        "Outputs whose prior tokens were stored";
    PRIOR_CACHE_STORED_BYTES = Counter, "fresco_prior_cache_stored_bytes", [], BATCHER,
        "Prior tokens that were stored, at two bytes each";

    // Denoising.
    OUTPUTS_PAINTED = Counter, "fresco_outputs_painted", [], DENOISER,
        "Pictures painted and stored";
    OUTPUTS_FAILED = Counter, "fresco_outputs_failed", [], DENOISER,
        "Outputs that ended with an error";
    ATTEMPTS_FAILED = Counter, "fresco_attempts_failed", [], DENOISER,
        "Attempts that failed and left the output to another one";
    OUTPUTS_GIVEN_BACK = Counter, "fresco_outputs_given_back", [], DENOISER,
        "Outputs given back unfinished: by a worker that stops, or that its broker does not answer";
    OUTPUTS_STOPPED = Counter, "fresco_outputs_stopped", [], DENOISER,
        "Outputs stopped because they had a result: cancelled, expired, or painted by another worker";
    DENOISE_STEP = Histogram(STEP_SECONDS), "fresco_denoise_step_seconds", [], DENOISER,
        "One denoising step";
    DEVICE_BUSY = Counter, "fresco_device_busy_seconds", [], DENOISER,
        "Time that the device painted, step by step, for pictures that came of it and for those that did not; devices of AR engines are not among them: fresco_ar_device_busy_seconds_total";
    TENANT_DEVICE = Counter, "fresco_tenant_device_seconds", ["tenant"], DENOISER,
        "Time that the device painted, step by step, by whose output it was: a name of `--tenants`, or none; the sum over tenants is fresco_device_busy_seconds_total";
    CANCEL_TO_FREE = Histogram(STEP_SECONDS), "fresco_cancel_to_free_seconds", [], DENOISER,
        "From hearing that an output has ended to a device that is free again";
}

/// The names of what `role` has.
pub fn names_of(role: Role) -> BTreeSet<&'static str> {
    let of_role = ALL.iter().filter(|spec| spec.roles.contains(&role));
    of_role.map(|spec| spec.name).collect()
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn names_follow_the_rules_of_prometheus() {
        let mut names = BTreeSet::new();
        for spec in ALL {
            let Spec {
                name, help, kind, ..
            } = spec;
            assert!(names.insert(name), "{name} twice");
            assert!(name.starts_with("fresco_"), "{name}");
            let allowed = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.chars().all(allowed), "{name}");
            for suffix in ["_total", "_count", "_sum", "_bucket", "_ms", "_millis"] {
                assert!(!name.ends_with(suffix), "{name}");
            }
            assert!(!help.ends_with('.') && !help.is_empty(), "{name}: {help}");
            assert!(!spec.roles.is_empty(), "{name}");
            if let Kind::Histogram(bounds) = kind {
                assert!(bounds.is_sorted_by(|a, b| a < b), "{name}");
                // What Prometheus keeps of one histogram.
                assert!(bounds.len() <= 20, "{name}");
            }
        }
    }

    #[test]
    fn labels_are_of_a_closed_set() {
        // A label that is not here wants a thought about how many values it can have.
        let bounded = BTreeSet::from([
            "role",
            "version",
            "reason",
            "outcome",
            "size_class",
            "class",
            "stage",
            "stream",
            "state",
            // Those of a file that is read once, 100 at most; a denoiser knows as many by its messages.
            "tenant",
            // One series a process, and a new one at each start: what others say more about it is joined to.
            "worker",
            "host",
            "device",
            "model_revision",
        ]);
        let labels = ALL.iter().flat_map(|spec| spec.labels).copied();
        assert!(labels.collect::<BTreeSet<_>>().is_subset(&bounded));
    }
}
