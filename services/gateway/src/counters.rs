//! What the gateway did, for `/metrics`. What is open is a difference of two counters, not a gauge that jumps.

use std::time::Duration;

use protocol::{ErrorCode, ImageSize, PriorityClass};
use service::metrics::{
    Counter, Labelled, Metrics, Trace, Traced, TracedBy,
    catalog::{
        DEADLINE_MISSED, IDEMPOTENT_JOINS, JOB_DURATION, JOBS_ACCEPTED, JOBS_CANCELLED,
        OUTPUT_DURATION, OUTPUTS_ACCEPTED, OUTPUTS_ENDED, OUTPUTS_EXPIRED, OUTPUTS_REFUSED,
        REJECTIONS, STAGE_RUN, STAGE_WAIT, UNATTRIBUTED,
    },
};

use crate::{
    outcomes::Outcome,
    spent::{CACHED, RUNS, SIZE_CLASSES, Spent, WAITS, size_class},
    tenant_counters::TenantCounters,
    tenants::Tenants,
};

#[derive(Debug, Clone)]
pub(crate) struct Counters {
    pub(crate) jobs_accepted: Counter,
    pub(crate) outputs_accepted: Counter,
    pub(crate) outputs_ended: Counter,
    pub(crate) outputs_refused: Counter,
    pub(crate) outputs_expired: Counter,
    pub(crate) jobs_cancelled: Counter,
    pub(crate) idempotent_joins: Counter,
    deadline_missed: Counter,
    rejections: Labelled<Counter, 1>,
    job_duration: TracedBy<3>,
    /// In the order of [`Outcome::ALL`], [`WAITS`] and [`RUNS`]: there from the start, so that rates see the first of each.
    output_duration: [Traced; 6],
    stage_wait: [Traced; 3],
    stage_run: [Traced; 3],
    /// Of prior tokens that nobody had to write: an engine that got slower must show, however many there are.
    cached_run: Traced,
    unattributed: Traced,
    pub(crate) tenants: TenantCounters,
}

/// A job, for the labels of its duration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct JobKind {
    pub(crate) size: ImageSize,
    pub(crate) class: PriorityClass,
}

impl Counters {
    pub(crate) fn register(metrics: &Metrics, tenants: Option<&Tenants>) -> Self {
        let durations = metrics.traced_by(OUTPUT_DURATION);
        let (waits, runs) = (metrics.traced_by(STAGE_WAIT), metrics.traced_by(STAGE_RUN));
        Self {
            jobs_accepted: metrics.counter(JOBS_ACCEPTED),
            outputs_accepted: metrics.counter(OUTPUTS_ACCEPTED),
            outputs_ended: metrics.counter(OUTPUTS_ENDED),
            outputs_refused: metrics.counter(OUTPUTS_REFUSED),
            outputs_expired: metrics.counter(OUTPUTS_EXPIRED),
            jobs_cancelled: metrics.counter(JOBS_CANCELLED),
            idempotent_joins: metrics.counter(IDEMPOTENT_JOINS),
            deadline_missed: metrics.counter(DEADLINE_MISSED),
            rejections: metrics
                .counters(REJECTIONS)
                .from_zero(ErrorCode::ALL.map(|code| [code.as_str()])),
            job_duration: from_zero(metrics.traced_by(JOB_DURATION)),
            output_duration: Outcome::ALL.map(|outcome| durations.of([outcome.label()])),
            stage_wait: WAITS.map(|stage| waits.of([stage])),
            stage_run: RUNS.map(|stage| runs.of([stage])),
            cached_run: runs.of([CACHED]),
            unattributed: metrics.traced(UNATTRIBUTED),
            tenants: TenantCounters::register(metrics, tenants),
        }
    }

    /// A request for pictures did not become a job.
    pub(crate) fn rejected(&self, code: ErrorCode) {
        self.rejections.of([code.as_str()]).inc();
    }

    /// An output of a job that was accepted here has ended, `total` after that; `spent` is where a picture's time went.
    pub(crate) fn output_ended(&self, outcome: Outcome, spent: Option<&Spent>, total: Duration) {
        let trace = Trace::current();
        let durations = Outcome::ALL.iter().zip(&self.output_duration);
        for (_, duration) in durations.filter(|(of, _)| **of == outcome) {
            duration.observe(total.as_secs_f64(), &trace);
        }
        if matches!(outcome, Outcome::Expired | Outcome::ExpiredEarly) {
            self.deadline_missed.inc();
        }
        let Some(spent) = spent.filter(|_| outcome == Outcome::Done) else {
            return;
        };
        for (stage, seconds) in self.stage_wait.iter().zip(spent.waits) {
            stage.observe(seconds, &trace);
        }
        let [ar, denoise, decode] = &self.stage_run;
        let prior = if spent.cached { &self.cached_run } else { ar };
        for (stage, seconds) in [prior, denoise, decode].into_iter().zip(spent.runs) {
            stage.observe(seconds, &trace);
        }
        self.unattributed.observe(spent.unattributed, &trace);
    }

    /// The last output of such a job has ended.
    pub(crate) fn job_ended(&self, job: JobKind, outcome: Outcome, total: Duration) {
        let labels = [
            outcome.label(),
            size_class(job.size),
            class_label(job.class),
        ];
        let duration = self.job_duration.of(labels);
        duration.observe(total.as_secs_f64(), &Trace::current());
    }
}

/// With a series for each kind of job: a quantile over some minutes sees nothing of the first job of a series that appears
/// with it, and where jobs are few most are such.
fn from_zero(durations: TracedBy<3>) -> TracedBy<3> {
    for outcome in Outcome::ALL {
        for size in SIZE_CLASSES {
            for class in PriorityClass::ALL {
                drop(durations.of([outcome.label(), size, class_label(class)]));
            }
        }
    }
    durations
}

/// A class as labels have it.
pub(crate) const fn class_label(class: PriorityClass) -> &'static str {
    match class {
        PriorityClass::High => "high",
        PriorityClass::Standard => "standard",
        PriorityClass::Low => "low",
    }
}

#[cfg(test)]
impl Default for Counters {
    fn default() -> Self {
        Self::register(&Metrics::new(protocol::Role::Gateway), None)
    }
}

#[cfg(test)]
mod tests {
    use protocol::{OutputTimings, PriorUsage, Role, Tenant};
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};

    use super::*;

    fn usage(cached: bool) -> PriorUsage {
        PriorUsage {
            prompt_tokens: 3,
            generated_tokens: 4,
            cached,
        }
    }

    /// Counts a job that could have been.
    fn record(counters: &Counters, tenants: &[Option<Tenant>], rng: &mut StdRng) {
        let mut at = rng.random_range(1..1 << 40);
        let start = at;
        let mut next = || {
            at += rng.random_range(0..200_000);
            Some(at)
        };
        let timings = OutputTimings {
            accepted_at: start,
            ar_started_at: next(),
            ar_finished_at: next(),
            denoise_started_at: next(),
            denoise_finished_at: next(),
            finished_at: next().unwrap(),
        };
        let total = Duration::from_millis(at - start);
        let outcome = *Outcome::ALL.choose(rng).unwrap();
        let usage = usage(rng.random());
        let spent = Spent::of(&timings, Some(&usage), at, total);
        counters.output_ended(outcome, spent.as_ref(), total);
        let tenant = counters.tenants.of(tenants.choose(rng).unwrap().as_ref());
        tenant.queued(1);
        tenant.output_ended(outcome, spent.as_ref());
        tenant.job_ended(outcome);
        tenant.rejected();
        let side = |rng: &mut StdRng| rng.random_range(1..=64_u32) * 32;
        let job = JobKind {
            size: ImageSize::new(side(rng), side(rng)).unwrap(),
            class: *PriorityClass::ALL.choose(rng).unwrap(),
        };
        counters.job_ended(job, outcome, total);
        counters.rejected(*ErrorCode::ALL.choose(rng).unwrap());
        counters.jobs_accepted.inc();
    }

    fn series(metrics: &Metrics) -> usize {
        let text = metrics.exposition().unwrap();
        text.lines().filter(|line| !line.starts_with('#')).count()
    }

    #[test]
    fn the_first_job_of_a_kind_raises_a_series_that_is_there() {
        let metrics = Metrics::new(Role::Gateway);
        let counters = Counters::register(&metrics, None);
        let before = series(&metrics);
        let mut rng = StdRng::seed_from_u64(7);
        record(&counters, &[None], &mut rng);
        assert_eq!(series(&metrics), before);
    }

    #[test]
    fn what_an_engine_took_is_not_mixed_with_tokens_that_were_there() {
        let metrics = Metrics::new(Role::Gateway);
        let counters = Counters::register(&metrics, None);
        let timings = OutputTimings {
            accepted_at: 1_000,
            ar_started_at: Some(1_000),
            ar_finished_at: Some(9_000),
            denoise_started_at: Some(9_000),
            denoise_finished_at: Some(9_000),
            finished_at: 9_000,
        };
        let there = OutputTimings {
            ar_finished_at: Some(1_002),
            ..timings
        };
        let total = Duration::from_secs(8);
        for (timings, cached) in [(timings, false), (there, true), (there, true)] {
            let spent = Spent::of(&timings, Some(&usage(cached)), 9_000, total);
            counters.output_ended(Outcome::Done, spent.as_ref(), total);
        }
        let text = metrics.exposition().unwrap();
        for line in [
            "fresco_stage_run_seconds_count{stage=\"ar\"} 1\n",
            "fresco_stage_run_seconds_sum{stage=\"ar\"} 8.0\n",
            "fresco_stage_run_seconds_count{stage=\"cached\"} 2\n",
            "fresco_stage_run_seconds_count{stage=\"denoise\"} 3\n",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn ten_thousand_random_jobs_make_no_more_series_than_labels_allow() {
        let metrics = Metrics::new(Role::Gateway);
        let keys = [("studio", 1), ("press", 2)].map(|(name, key)| {
            format!("[[tenant]]\nname = \"{name}\"\nkey_sha256 = \"{key:064x}\"\n")
        });
        let tenants = Tenants::parse(&keys.concat()).unwrap();
        let counters = Counters::register(&metrics, Some(&tenants));
        // One was in the file when its job was accepted by another gateway.
        let names = [None, Some("studio"), Some("press"), Some("gone")];
        let names = names.map(|name| name.map(|name| name.parse().unwrap()));
        let mut rng = StdRng::seed_from_u64(7);
        for _ in 0..10_000 {
            record(&counters, &names, &mut rng);
        }
        let after = series(&metrics);
        // Of a histogram to 600 s: 19 bounds, one for the rest, sum and count.
        let (histogram, outcomes) = (19 + 3, Outcome::ALL.len());
        let jobs = outcomes * 4 * PriorityClass::ALL.len() * histogram;
        let outputs = outcomes * histogram;
        let (stages, unattributed) = (7 * histogram, 11 + 3);
        let counters_plain = 8;
        // Two tenants and nobody: jobs by outcome, one histogram, two counters and a gauge.
        let of_tenants = 3 * (outcomes + histogram + 3);
        let whole = jobs + outputs + stages + unattributed + of_tenants;
        let all = whole + counters_plain + ErrorCode::ALL.len();
        assert_eq!(after, all);
        println!("{after} series");
        for _ in 0..10_000 {
            record(&counters, &names, &mut rng);
        }
        assert_eq!(series(&metrics), after, "more jobs, no more series");
    }
}
