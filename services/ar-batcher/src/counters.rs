//! What the batcher did, for `/metrics`.

use std::time::Duration;

use batching::Redelivery;
use service::metrics::{
    Counter, Gauge, Histogram, Labelled, Metrics, SecondsCounter, Worker,
    catalog::{
        AR_BATCH_FILL, AR_BATCH_ROWS, AR_DEVICE_BUSY, AR_ENGINE_CALLS, AR_OLDEST_WAITING,
        AR_ROWS_FAILED, AR_ROWS_FINISHED, AR_ROWS_STARTED, AR_ROWS_WAITING, AR_ROWS_WITHDRAWN,
        AR_SLOTS, AR_STORE,
    },
    number,
};

/// The stage as labels have it.
const STAGE: &str = "ar";

#[derive(Debug, Clone)]
pub(crate) struct Counters {
    engine_calls: Counter,
    rows_started: Counter,
    rows_finished: Counter,
    rows_failed: Counter,
    pub(crate) withdrawn: Counter,
    waiting: Gauge,
    oldest_waiting: Gauge,
    slots: Gauge,
    batch_rows: Histogram,
    batch_fill: Histogram,
    store: Histogram,
    inflight: Gauge,
    /// None where the devices are others': a 0 would read as idle.
    device_busy: Labelled<SecondsCounter, 0>,
    pub(crate) worker: Worker,
}

impl Counters {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        let worker = Worker::register(metrics, STAGE, Redelivery::ALL.map(Redelivery::as_str));
        Self {
            engine_calls: metrics.counter(AR_ENGINE_CALLS),
            rows_started: metrics.counter(AR_ROWS_STARTED),
            rows_finished: metrics.counter(AR_ROWS_FINISHED),
            rows_failed: metrics.counter(AR_ROWS_FAILED),
            withdrawn: metrics.counter(AR_ROWS_WITHDRAWN),
            waiting: metrics.gauge(AR_ROWS_WAITING),
            oldest_waiting: metrics.gauge(AR_OLDEST_WAITING),
            slots: metrics.gauge(AR_SLOTS),
            batch_rows: metrics.histogram(AR_BATCH_ROWS),
            batch_fill: metrics.histogram(AR_BATCH_FILL),
            store: metrics.histogram(AR_STORE),
            inflight: worker.inflight.clone(),
            device_busy: metrics.seconds_by(AR_DEVICE_BUSY),
            worker,
        }
    }

    /// Of the device that this process writes on, from now on.
    pub(crate) fn device_busy(&self) -> SecondsCounter {
        self.device_busy.of([])
    }

    /// So many outputs may run at once.
    pub(crate) fn has_slots(&self, slots: usize) {
        self.slots.set(number(slots as u64));
    }

    /// So many wait, and so many run.
    pub(crate) fn holds(&self, waiting: usize, running: usize) {
        self.waiting.set(number(waiting as u64));
        self.inflight.set(number(running as u64));
    }

    /// The oldest of those that wait was accepted so long ago; none waits: 0.
    pub(crate) fn oldest_waits(&self, waited: Duration) {
        self.oldest_waiting.set(waited.as_secs_f64());
    }

    /// An output's denoise message is stored, so long after its prior tokens were there.
    pub(crate) fn stored(&self, took: Duration) {
        self.store.observe(took.as_secs_f64());
    }

    /// See `Bench::called`.
    pub(crate) fn called(&self, rows: usize, running: usize) {
        self.engine_calls.inc();
        self.rows_started.inc_by(rows as u64);
        self.batch_rows.observe(number(rows as u64));
        let slots = self.slots.get();
        if slots > 0.0 {
            self.batch_fill.observe(number(running as u64) / slots);
        }
    }

    /// A row came back.
    pub(crate) fn row(&self, finished: bool) {
        let counter = if finished {
            &self.rows_finished
        } else {
            &self.rows_failed
        };
        counter.inc();
    }

    /// A message came again, for this reason.
    pub(crate) fn redelivered(&self, reason: Redelivery) {
        self.worker.redelivered(reason.as_str());
    }
}

#[cfg(test)]
mod tests {
    use protocol::Role;
    use service::metrics::{Process, catalog::names_of};

    use super::*;
    use crate::prior_cache::CacheCounters;

    #[test]
    fn a_batcher_has_the_metrics_of_the_catalogue() {
        let metrics = Metrics::new(Role::ArBatcher);
        Process::register(&metrics);
        Counters::register(&metrics);
        CacheCounters::register(&metrics);
        assert_eq!(metrics.names(), names_of(Role::ArBatcher));
    }
}
