//! What the batcher did, for `/metrics`.

use service::metrics::{metrics::counter::Counter, registry::Registry};

#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    engine_calls: Counter,
    rows_started: Counter,
    rows_finished: Counter,
    rows_failed: Counter,
    pub(crate) withdrawn: Counter,
    pub(crate) dead: Counter,
    pub(crate) refused: Counter,
    pub(crate) suppressed: Counter,
    pub(crate) quarantines: Counter,
}

impl Counters {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let counters = Self::default();
        let mut counter =
            |name, help, counter: &Counter| registry.register(name, help, counter.clone());
        counter(
            "fresco_ar_engine_calls",
            "Batches given to the AR engine",
            &counters.engine_calls,
        );
        counter(
            "fresco_ar_rows_started",
            "Outputs given to the AR engine",
            &counters.rows_started,
        );
        counter(
            "fresco_ar_rows_finished",
            "Outputs with prior tokens",
            &counters.rows_finished,
        );
        counter(
            "fresco_ar_rows_failed",
            "Rows that the AR engine failed at",
            &counters.rows_failed,
        );
        counter(
            "fresco_ar_rows_withdrawn",
            "Outputs that ended, or were another batcher's, before the AR stage was done with them",
            &counters.withdrawn,
        );
        counter(
            "fresco_outputs_dead",
            "Outputs given up as dead letters",
            &counters.dead,
        );
        counter(
            "fresco_transitions_refused",
            "Events that could not follow in an output's life",
            &counters.refused,
        );
        counter(
            "fresco_results_suppressed",
            "Results that were second and dropped",
            &counters.suppressed,
        );
        counter(
            "fresco_quarantines",
            "Times the worker took itself out because its engine failed in a row",
            &counters.quarantines,
        );
        counters
    }

    /// A batch of `rows` goes to the engine.
    pub(crate) fn started(&self, rows: usize) {
        self.engine_calls.inc();
        self.rows_started
            .inc_by(u64::try_from(rows).unwrap_or(u64::MAX));
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
}
