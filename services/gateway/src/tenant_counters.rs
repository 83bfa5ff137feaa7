//! What each tenant asked for and got; what it cost, denoisers count. Series for those of the file and for nobody, all from the start: no request
//! makes more of them.

use std::{collections::BTreeMap, sync::Arc};

use protocol::Tenant;
use service::metrics::{
    Counter, Gauge, Metrics, Trace, Traced,
    catalog::{
        TENANT_IMAGES, TENANT_JOBS, TENANT_OUTPUTS_OPEN, TENANT_QUEUE_WAIT, TENANT_REJECTIONS,
    },
    number,
};

use crate::{outcomes::Outcome, spent::Spent, tenants::Tenants};

/// By tenant. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct TenantCounters {
    by_tenant: Arc<BTreeMap<Tenant, OfTenant>>,
    nobody: OfTenant,
}

/// Of one.
#[derive(Debug, Clone)]
pub(crate) struct OfTenant {
    /// In the order of [`Outcome::ALL`].
    jobs: [Counter; 6],
    images: Counter,
    queue_wait: Traced,
    outputs_open: Gauge,
    rejections: Counter,
}

impl TenantCounters {
    pub(crate) fn register(metrics: &Metrics, tenants: Option<&Tenants>) -> Self {
        let jobs = metrics.counters(TENANT_JOBS);
        let (images, waits) = (
            metrics.counters(TENANT_IMAGES),
            metrics.traced_by(TENANT_QUEUE_WAIT),
        );
        let open = metrics.gauges(TENANT_OUTPUTS_OPEN);
        let rejections = metrics.counters(TENANT_REJECTIONS);
        let of = |label: &'static str| OfTenant {
            jobs: Outcome::ALL.map(|outcome| jobs.of([label, outcome.label()])),
            images: images.of([label]),
            queue_wait: waits.of([label]),
            outputs_open: open.of([label]),
            rejections: rejections.of([label]),
        };
        let names = tenants.into_iter().flat_map(Tenants::names);
        let by_tenant = names.map(|tenant| (tenant.clone(), of(label(tenant))));
        Self {
            by_tenant: Arc::new(by_tenant.collect()),
            nobody: of(Tenant::NONE),
        }
    }

    /// Of this tenant. One that is not in the file has jobs left from when it was, and counts as nobody.
    pub(crate) fn of(&self, tenant: Option<&Tenant>) -> &OfTenant {
        let known = tenant.and_then(|tenant| self.by_tenant.get(tenant));
        known.unwrap_or(&self.nobody)
    }
}

/// A label lives as long as the process, as its series does; there are as many as the file may name.
fn label(tenant: &Tenant) -> &'static str {
    String::leak(tenant.to_string())
}

impl OfTenant {
    /// So many outputs are let in.
    pub(crate) fn queued(&self, outputs: u64) {
        self.outputs_open.inc_by(number(outputs));
    }

    /// So many of them have ended, or are not waited for any more.
    pub(crate) fn freed(&self, outputs: u64) {
        self.outputs_open.dec_by(number(outputs));
    }

    /// One of its outputs has ended; `spent` is where a picture's time went.
    pub(crate) fn output_ended(&self, outcome: Outcome, spent: Option<&Spent>) {
        if outcome != Outcome::Done {
            return;
        }
        self.images.inc();
        let Some(Spent { waits, .. }) = spent else {
            return;
        };
        let [ar_wait, denoise_wait, _] = waits;
        self.queue_wait
            .observe(ar_wait + denoise_wait, &Trace::current());
    }

    /// The last output of one of its jobs has ended.
    pub(crate) fn job_ended(&self, outcome: Outcome) {
        let jobs = Outcome::ALL.iter().zip(&self.jobs);
        for (_, jobs) in jobs.filter(|(of, _)| **of == outcome) {
            jobs.inc();
        }
    }

    /// One of its requests for pictures was refused.
    pub(crate) fn rejected(&self) {
        self.rejections.inc();
    }
}
