//! What the worker did, for `/metrics`.

use batching::Redelivery;
use service::metrics::{
    Counter, Gauge, Histogram, Metrics, SecondsCounter, Worker,
    catalog::{
        ATTEMPTS_FAILED, CANCEL_TO_FREE, DENOISE_STEP, DEVICE_BUSY, OUTPUTS_FAILED,
        OUTPUTS_GIVEN_BACK, OUTPUTS_PAINTED, OUTPUTS_STOPPED,
    },
};

/// The stage as labels have it.
const STAGE: &str = "denoise";

/// Since the start of the process.
#[derive(Debug, Clone)]
pub(crate) struct Counters {
    pub(crate) painted: Counter,
    pub(crate) failed: Counter,
    pub(crate) attempts_failed: Counter,
    pub(crate) given_back: Counter,
    pub(crate) stopped: Counter,
    /// Written by the device's thread.
    pub(crate) step: Histogram,
    pub(crate) busy: SecondsCounter,
    pub(crate) cancel_to_free: Histogram,
    pub(crate) inflight: Gauge,
    pub(crate) worker: Worker,
}

impl Counters {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        let worker = Worker::register(metrics, STAGE, Redelivery::ALL.map(Redelivery::as_str));
        Self {
            painted: metrics.counter(OUTPUTS_PAINTED),
            failed: metrics.counter(OUTPUTS_FAILED),
            attempts_failed: metrics.counter(ATTEMPTS_FAILED),
            given_back: metrics.counter(OUTPUTS_GIVEN_BACK),
            stopped: metrics.counter(OUTPUTS_STOPPED),
            step: metrics.histogram(DENOISE_STEP),
            busy: metrics.seconds(DEVICE_BUSY),
            cancel_to_free: metrics.histogram(CANCEL_TO_FREE),
            inflight: worker.inflight.clone(),
            worker,
        }
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
    use crate::tenant_times::TenantTimes;

    #[test]
    fn a_denoiser_has_the_metrics_of_the_catalogue() {
        let metrics = Metrics::new(Role::Denoiser);
        Process::register(&metrics);
        Counters::register(&metrics);
        TenantTimes::register(&metrics);
        assert_eq!(metrics.names(), names_of(Role::Denoiser));
    }
}
