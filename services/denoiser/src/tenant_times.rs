//! Whose time the device's is. A denoiser has no file of tenants: it knows those that its messages name, and no more of
//! them than a deployment may have.

use std::collections::BTreeMap;

use protocol::{Tenant, limits::TENANTS_MAX};
use service::metrics::{Labelled, Metrics, SecondsCounter, catalog::TENANT_DEVICE};

/// By tenant.
#[derive(Debug)]
pub(crate) struct TenantTimes {
    seconds: Labelled<SecondsCounter, 1>,
    known: BTreeMap<Tenant, SecondsCounter>,
    nobody: SecondsCounter,
    /// Whether a name has been left out.
    is_full: bool,
}

impl TenantTimes {
    pub(crate) fn register(metrics: &Metrics) -> Self {
        let seconds = metrics.seconds_by(TENANT_DEVICE);
        Self {
            nobody: seconds.of([Tenant::NONE]),
            seconds,
            known: BTreeMap::new(),
            is_full: false,
        }
    }

    /// Of this tenant. Beyond the limit, which names that come and go over months can reach, a new one counts as nobody
    /// until the process starts again.
    pub(crate) fn of(&mut self, tenant: Option<&Tenant>) -> SecondsCounter {
        let Some(tenant) = tenant else {
            return self.nobody.clone();
        };
        if let Some(known) = self.known.get(tenant) {
            return known.clone();
        }
        if self.known.len() == TENANTS_MAX {
            if !self.is_full {
                tracing::warn!(TENANTS_MAX, %tenant, "more tenants than are counted apart: the time of further ones is nobody's");
            }
            self.is_full = true;
            return self.nobody.clone();
        }
        // A label lives as long as the process, as its series does.
        let counter = self.seconds.of([String::leak(tenant.to_string())]);
        self.known.insert(tenant.clone(), counter.clone());
        counter
    }
}

#[cfg(test)]
mod tests {
    use protocol::Role;

    use super::*;

    fn tenant(number: usize) -> Tenant {
        format!("t{number}").parse().expect("a name")
    }

    #[test]
    fn each_tenant_has_a_counter_and_more_than_there_may_be_count_as_nobody() {
        let metrics = Metrics::new(Role::Denoiser);
        let mut times = TenantTimes::register(&metrics);
        for number in 0..TENANTS_MAX + 2 {
            times.of(Some(&tenant(number))).inc_by(1.0);
        }
        times.of(None).inc_by(0.5);
        times.of(Some(&tenant(7))).inc_by(1.0);
        let text = metrics.exposition().expect("text");
        let named = |name: &str, seconds| {
            format!("fresco_tenant_device_seconds_total{{tenant=\"{name}\"}} {seconds}\n")
        };
        for line in [
            named("t0", "1.0"),
            named("t7", "2.0"),
            named("t99", "1.0"),
            named("none", "2.5"),
        ] {
            assert!(text.contains(&line), "no {line} in\n{text}");
        }
        let series = text
            .matches("\nfresco_tenant_device_seconds_total{")
            .count();
        assert_eq!(series, TENANTS_MAX + 1);
    }
}
