//! What a process measures. Names, types and labels stand in [`catalog`]; this makes them countable and shows them.
//!
//! | module    | has                                                            |
//! |-----------|----------------------------------------------------------------|
//! | `catalog` | every metric, as a constant                                    |
//! | `trace`   | exemplars: which trace an observation belongs to               |
//! | `common`  | what every process measures, and what every worker does        |
//! | `device`  | how long a device works                                        |
//! | `otlp`    | the same as OTLP has it                                        |
//! | `page`    | the catalogue as `observability/metrics.md`                    |

pub mod catalog;
mod common;
mod device;
pub(crate) mod otlp;
pub mod page;
mod trace;

use std::{
    collections::BTreeSet,
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use prometheus_client::{
    encoding::text,
    metrics::{
        exemplar::HistogramWithExemplars,
        family::{Family, MetricConstructor},
    },
    registry::{Metric, Registry, Unit},
};
use protocol::{Role, UnixMillis};

use self::{
    catalog::{Kind, Spec},
    trace::TraceId,
};

pub use self::{
    common::{LibtorchMemory, Process, STATES, Worker, state_label},
    device::DeviceClock,
    trace::Trace,
};
pub use prometheus_client::metrics::{counter::Counter, histogram::Histogram};

use crate::clock::unix_millis;

/// A gauge of any number.
pub type Gauge = prometheus_client::metrics::gauge::Gauge<f64, AtomicU64>;

/// A counter of seconds.
pub type SecondsCounter = Counter<f64, AtomicU64>;

/// The metrics of one process, by role. Clones share them.
#[derive(Clone)]
pub struct Metrics {
    role: Role,
    /// In milliseconds of the Unix epoch.
    since: UnixMillis,
    shared: Arc<Shared>,
}

struct Shared {
    registry: Mutex<Registered>,
    /// What looks something up before each scrape.
    refreshes: Mutex<Vec<Arc<Refresh>>>,
}

#[derive(Default)]
struct Registered {
    registry: Registry,
    specs: Vec<Spec>,
}

type Refresh = dyn Fn() -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync;

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Metrics({})", self.role)
    }
}

impl Metrics {
    /// None yet, of a process of `role`.
    pub fn new(role: Role) -> Self {
        let shared = Shared {
            registry: Mutex::default(),
            refreshes: Mutex::default(),
        };
        Self {
            role,
            since: unix_millis(),
            shared: Arc::new(shared),
        }
    }

    /// Whose they are.
    pub const fn role(&self) -> Role {
        self.role
    }

    /// A counter without labels.
    pub fn counter(&self, spec: Spec) -> Counter {
        self.register(spec, Counter::default())
    }

    /// A counter of seconds without labels.
    pub fn seconds(&self, spec: Spec) -> SecondsCounter {
        self.register(spec, SecondsCounter::default())
    }

    /// A gauge without labels.
    pub fn gauge(&self, spec: Spec) -> Gauge {
        self.register(spec, Gauge::default())
    }

    /// A histogram without labels.
    pub fn histogram(&self, spec: Spec) -> Histogram {
        self.register(spec, Histogram::new(bounds(spec).iter().copied()))
    }

    /// The same whose observations name their traces.
    pub fn traced(&self, spec: Spec) -> Traced {
        self.register(spec, Buckets(bounds(spec)).new_metric())
            .into()
    }

    /// Counters with labels.
    pub fn counters<const N: usize>(&self, spec: Spec) -> Labelled<Counter, N> {
        self.labelled(spec)
    }

    /// Gauges with labels.
    pub fn gauges<const N: usize>(&self, spec: Spec) -> Labelled<Gauge, N> {
        self.labelled(spec)
    }

    /// Counters of seconds with labels.
    pub fn seconds_by<const N: usize>(&self, spec: Spec) -> Labelled<SecondsCounter, N> {
        self.labelled(spec)
    }

    /// Histograms with labels, whose observations name their traces.
    pub fn traced_by<const N: usize>(&self, spec: Spec) -> TracedBy<N> {
        let family = Family::new_with_constructor(Buckets(bounds(spec)));
        TracedBy(Labelled::new(spec, self.register(spec, family)))
    }

    fn labelled<M, const N: usize>(&self, spec: Spec) -> Labelled<M, N>
    where
        M: Clone + Default + prometheus_client::encoding::EncodeMetric + fmt::Debug,
        M: prometheus_client::metrics::TypedMetric + Send + Sync + 'static,
    {
        Labelled::new(spec, self.register(spec, Family::default()))
    }

    /// Runs before each scrape, which waits for it: for what is cheaper to look up then than to keep up to date.
    pub fn before_scrapes<F: Future<Output = ()> + Send + 'static>(
        &self,
        refresh: impl Fn() -> F + Send + Sync + 'static,
    ) {
        let refresh: Arc<Refresh> = Arc::new(move || Box::pin(refresh()));
        let refreshes = self.shared.refreshes.lock();
        refreshes
            .unwrap_or_else(PoisonError::into_inner)
            .push(refresh);
    }

    /// Everything in OpenMetrics text, as it is now.
    pub async fn scrape(&self) -> Result<String, fmt::Error> {
        self.refresh().await;
        self.exposition()
    }

    /// Looks up what is looked up before a scrape.
    pub(crate) async fn refresh(&self) {
        let refreshes = self.shared.refreshes.lock();
        let refreshes = refreshes.unwrap_or_else(PoisonError::into_inner).clone();
        for refresh in refreshes {
            refresh().await;
        }
    }

    /// Everything as OTLP has it, as it was looked up last.
    pub(crate) fn otlp_now(&self) -> Result<Vec<otlp::Metric>, fmt::Error> {
        let nanos = |at: UnixMillis| at.saturating_mul(1_000_000);
        self.otlp(otlp::Span {
            start: nanos(self.since),
            end: nanos(unix_millis()),
        })
    }

    fn otlp(&self, span: otlp::Span) -> Result<Vec<otlp::Metric>, fmt::Error> {
        let text = self.exposition()?;
        let specs = self.lock().specs.clone();
        Ok(otlp::metrics(&specs, &text, span))
    }

    /// The same without looking anything up.
    pub fn exposition(&self) -> Result<String, fmt::Error> {
        let mut body = String::new();
        text::encode(&mut body, &self.lock().registry)?;
        Ok(body)
    }

    /// The names of what is registered.
    pub fn names(&self) -> BTreeSet<&'static str> {
        let registered = self.lock();
        registered.specs.iter().map(|spec| spec.name).collect()
    }

    fn register<M: Metric + Clone>(&self, spec: Spec, metric: M) -> M {
        let unit = spec.unit();
        let name = unit.and_then(|unit| spec.name.strip_suffix(unit)?.strip_suffix('_'));
        let unit = unit.map(|unit| match unit {
            "bytes" => Unit::Bytes,
            _ => Unit::Seconds,
        });
        let mut registered = self.lock();
        let registry = &mut registered.registry;
        match (name, unit) {
            (Some(name), Some(unit)) => {
                registry.register_with_unit(name, spec.help, unit, metric.clone());
            }
            _ => registry.register(spec.name, spec.help, metric.clone()),
        }
        registered.specs.push(spec);
        metric
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Registered> {
        let registered = self.shared.registry.lock();
        registered.unwrap_or_else(PoisonError::into_inner)
    }
}

fn bounds(spec: Spec) -> &'static [f64] {
    match spec.kind {
        Kind::Histogram(bounds) => bounds,
        Kind::Counter | Kind::Gauge => &[],
    }
}

/// Values of labels that are written in the program, or read once at its start: no number of jobs makes more of them.
type Labels<const N: usize> = [(&'static str, &'static str); N];

/// A metric with labels.
#[derive(Debug, Clone)]
pub struct Labelled<M, const N: usize, C = fn() -> M> {
    names: &'static [&'static str],
    family: Family<Labels<N>, M, C>,
}

impl<M, const N: usize, C> Labelled<M, N, C>
where
    M: Clone,
    C: MetricConstructor<M>,
{
    fn new(spec: Spec, family: Family<Labels<N>, M, C>) -> Self {
        debug_assert_eq!(spec.labels.len(), N, "{}", spec.name);
        Self {
            names: spec.labels,
            family,
        }
    }

    /// The one with these values, in the order of the catalogue.
    pub fn of(&self, values: [&'static str; N]) -> M {
        self.family.get_or_create_owned(&self.labels(values))
    }

    /// The same, with a series for each of `values` from the start: a counter that appears with its first event has no
    /// increase that a rate could see.
    #[must_use]
    pub fn from_zero(self, values: impl IntoIterator<Item = [&'static str; N]>) -> Self {
        values.into_iter().for_each(|values| drop(self.of(values)));
        self
    }

    /// From now on there is none: nobody knows.
    pub fn forget(&self) {
        self.family.clear();
    }

    fn labels(&self, values: [&'static str; N]) -> Labels<N> {
        std::array::from_fn(|i| (self.names.get(i).copied().unwrap_or_default(), values[i]))
    }
}

/// A histogram whose observations name the trace they belong to.
#[derive(Debug, Clone)]
pub struct Traced(HistogramWithExemplars<TraceId>);

impl From<HistogramWithExemplars<TraceId>> for Traced {
    fn from(histogram: HistogramWithExemplars<TraceId>) -> Self {
        Self(histogram)
    }
}

impl Traced {
    /// Counts `seconds`, as something of this trace.
    pub fn observe(&self, seconds: f64, trace: &Trace) {
        self.0.observe(seconds, trace.0.clone(), None);
    }
}

/// Such histograms, with labels.
#[derive(Debug, Clone)]
pub struct TracedBy<const N: usize>(Labelled<HistogramWithExemplars<TraceId>, N, Buckets>);

impl<const N: usize> TracedBy<N> {
    /// The one with these values, in the order of the catalogue.
    pub fn of(&self, values: [&'static str; N]) -> Traced {
        self.0.of(values).into()
    }
}

#[derive(Debug, Clone, Copy)]
struct Buckets(&'static [f64]);

impl MetricConstructor<HistogramWithExemplars<TraceId>> for Buckets {
    fn new_metric(&self) -> HistogramWithExemplars<TraceId> {
        HistogramWithExemplars::new(self.0.iter().copied())
    }
}

/// A gauge that has one series, whose labels say what is not known when the program is written.
#[derive(Debug, Clone)]
pub struct Told<const N: usize> {
    names: &'static [&'static str],
    family: Family<Vec<(&'static str, String)>, Gauge>,
}

impl Metrics {
    /// A gauge that tells by its labels.
    pub fn told<const N: usize>(&self, spec: Spec) -> Told<N> {
        debug_assert_eq!(spec.labels.len(), N, "{}", spec.name);
        Told {
            names: spec.labels,
            family: self.register(spec, Family::default()),
        }
    }
}

impl<const N: usize> Told<N> {
    /// From now on it tells this, and nothing else.
    pub fn tell(&self, values: [String; N]) {
        self.family.clear();
        let labels = self.names.iter().copied().zip(values).collect();
        self.family.get_or_create(&labels).set(1.0);
    }
}

/// A count that is no more than a number here.
pub fn number(count: u64) -> f64 {
    // Exact up to 2^53, which is more than anybody counts.
    count as f64
}

/// Sets a counter to `total`, which only grows, and is counted by somebody else.
pub fn raise(counter: &Counter, total: u64) {
    counter.inner().fetch_max(total, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::{catalog::*, *};

    #[test]
    fn what_is_counted_is_shown_under_its_name() {
        let metrics = Metrics::new(Role::Gateway);
        metrics.counter(JOBS_ACCEPTED).inc();
        let busy = metrics.seconds(DEVICE_BUSY);
        busy.inc_by(1.5);
        let depth = metrics.gauges::<2>(QUEUE_DEPTH);
        depth.of(["ar", "high"]).set(3.0);
        metrics
            .traced_by::<1>(STAGE_RUN)
            .of(["ar"])
            .observe(0.3, &Trace::current());
        metrics.histogram(AR_BATCH_ROWS).observe(2.0);
        metrics
            .told::<4>(WORKER_INFO)
            .tell(["w", "h", "cpu", "r"].map(str::to_owned));
        let text = metrics.exposition().unwrap();
        for line in [
            "fresco_jobs_accepted_total 1\n",
            "fresco_device_busy_seconds_total 1.5\n",
            "fresco_queue_depth{stage=\"ar\",class=\"high\"} 3.0\n",
            "fresco_stage_run_seconds_bucket{le=\"0.5\",stage=\"ar\"} 1\n",
            "fresco_ar_batch_rows_count 1\n",
            "# UNIT fresco_stage_run_seconds seconds\n",
            "fresco_worker_info{worker=\"w\",host=\"h\",device=\"cpu\",model_revision=\"r\"} 1.0\n",
            "# EOF\n",
        ] {
            assert!(text.contains(line), "no {line} in\n{text}");
        }
        depth.forget();
        assert!(!metrics.exposition().unwrap().contains("queue_depth"));
    }

    #[tokio::test]
    async fn a_scrape_looks_up_what_is_not_kept() {
        let metrics = Metrics::new(Role::Gateway);
        let open = metrics.gauge(OUTPUTS_OPEN);
        metrics.before_scrapes(move || {
            let open = open.clone();
            async move {
                open.set(7.0);
            }
        });
        let text = metrics.scrape().await.unwrap();
        assert!(text.contains("fresco_outputs_open 7.0\n"), "{text}");
    }

    #[test]
    fn a_counter_that_others_count_only_grows() {
        let counter = Metrics::new(Role::Gateway).counter(BROKER_CONNECTIONS);
        for (total, wanted) in [(2, 2), (2, 2), (5, 5)] {
            raise(&counter, total);
            assert_eq!(counter.get(), wanted);
        }
    }
}
