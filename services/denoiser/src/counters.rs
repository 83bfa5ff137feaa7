//! What the worker did, for `/metrics`.

use service::metrics::{metrics::counter::Counter, registry::Registry};

/// Counts since the start of the process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    pub(crate) painted: Counter,
    pub(crate) failed: Counter,
    pub(crate) attempts_failed: Counter,
    pub(crate) given_back: Counter,
    pub(crate) stopped: Counter,
    pub(crate) suppressed: Counter,
    pub(crate) dead: Counter,
    pub(crate) refused: Counter,
    pub(crate) quarantines: Counter,
}

impl Counters {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let counters = Self::default();
        let table = [
            (
                "fresco_outputs_painted",
                "Pictures painted and stored",
                &counters.painted,
            ),
            (
                "fresco_outputs_failed",
                "Outputs that ended with an error",
                &counters.failed,
            ),
            (
                "fresco_attempts_failed",
                "Attempts that failed and left the output to another one",
                &counters.attempts_failed,
            ),
            (
                "fresco_outputs_given_back",
                "Outputs given back unfinished",
                &counters.given_back,
            ),
            (
                "fresco_outputs_stopped",
                "Outputs stopped because they had ended: cancelled, expired, or painted by another worker",
                &counters.stopped,
            ),
            (
                "fresco_results_suppressed",
                "Results that were second and dropped",
                &counters.suppressed,
            ),
            (
                "fresco_outputs_dead",
                "Outputs given up as dead letters",
                &counters.dead,
            ),
            (
                "fresco_transitions_refused",
                "Events that could not follow in an output's life",
                &counters.refused,
            ),
            (
                "fresco_quarantines",
                "Times the worker took itself out because its engine failed in a row",
                &counters.quarantines,
            ),
        ];
        for (name, help, counter) in table {
            registry.register(name, help, counter.clone());
        }
        counters
    }
}
