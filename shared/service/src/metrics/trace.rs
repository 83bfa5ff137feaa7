//! Exemplars: an observation names the trace that it is part of, so that a slow bucket opens one.

use opentelemetry::trace::TraceContextExt;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// As OpenMetrics writes an exemplar's labels.
pub(super) type TraceId = [(&'static str, String); 1];

/// What observations belong to.
#[derive(Debug, Clone)]
pub struct Trace(pub(super) Option<TraceId>);

impl Trace {
    /// That of the current span, where it is recorded: one that is not leads nowhere.
    pub fn current() -> Self {
        let context = Span::current().context();
        let context = context.span().span_context().clone();
        let is_recorded = context.is_valid() && context.is_sampled();
        Self(is_recorded.then(|| [("trace_id", context.trace_id().to_string())]))
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider;
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
    use protocol::Role;
    use tracing_subscriber::layer::SubscriberExt;

    use super::Trace;
    use crate::metrics::{Metrics, catalog::UNATTRIBUTED};

    /// What is shown of an observation made in a span.
    fn observed(sampler: Sampler) -> String {
        let provider = SdkTracerProvider::builder().with_sampler(sampler).build();
        let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
        let subscriber = tracing_subscriber::registry().with(spans);
        let metrics = Metrics::new(Role::Gateway);
        let histogram = metrics.traced(UNATTRIBUTED);
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!("job");
            span.in_scope(|| histogram.observe(0.3, &Trace::current()));
        });
        metrics.exposition().unwrap()
    }

    #[test]
    fn an_observation_names_its_trace_where_that_is_recorded() {
        let text = observed(Sampler::AlwaysOn);
        let line = text
            .lines()
            .find(|line| line.contains("le=\"0.5\""))
            .unwrap();
        let (_, trace) = line.split_once("# {trace_id=\"").unwrap();
        let id = trace.split('"').next().unwrap();
        assert!(id.len() == 32 && id != "0".repeat(32), "{line}");
        let text = observed(Sampler::AlwaysOff);
        assert!(
            text.contains("le=\"0.5\"} 1\n") && !text.contains("trace_id"),
            "{text}"
        );
    }
}
