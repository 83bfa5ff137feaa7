//! What the gateway did, for `/metrics`. What is open is a difference of two counters, not a gauge that jumps.

use service::metrics::{metrics::counter::Counter, registry::Registry};

#[derive(Debug, Clone, Default)]
pub(crate) struct Counters {
    pub(crate) jobs_accepted: Counter,
    pub(crate) outputs_accepted: Counter,
    pub(crate) outputs_ended: Counter,
    pub(crate) outputs_refused: Counter,
    pub(crate) outputs_expired: Counter,
    pub(crate) jobs_cancelled: Counter,
    pub(crate) idempotent_joins: Counter,
}

impl Counters {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let counters = Self::default();
        let rows = [
            (
                "fresco_jobs_accepted",
                "Requests queued",
                &counters.jobs_accepted,
            ),
            (
                "fresco_outputs_accepted",
                "Outputs of queued requests",
                &counters.outputs_accepted,
            ),
            (
                "fresco_outputs_ended",
                "Outputs accepted here that ended, or whose end this gateway did not wait for",
                &counters.outputs_ended,
            ),
            (
                "fresco_outputs_refused",
                "Outputs of requests refused for want of room",
                &counters.outputs_refused,
            ),
            (
                "fresco_outputs_expired",
                "Outputs ended here at their deadline",
                &counters.outputs_expired,
            ),
            (
                "fresco_jobs_cancelled",
                "Requests of which this gateway cancelled something",
                &counters.jobs_cancelled,
            ),
            (
                "fresco_idempotent_joins",
                "Requests that joined an earlier one by their key",
                &counters.idempotent_joins,
            ),
        ];
        for (name, help, counter) in rows {
            registry.register(name, help, counter.clone());
        }
        counters
    }
}
