//! Trace context in message headers: W3C `traceparent` and `tracestate`, or whatever else the process's
//! propagator writes: which one that is, is the process's matter.

use async_nats::HeaderMap;
use opentelemetry::{
    Context, global,
    propagation::{Extractor, Injector},
    trace::TraceContextExt,
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

struct Write<'a>(&'a mut HeaderMap);

impl Injector for Write<'_> {
    fn set(&mut self, key: &str, value: String) {
        self.0.insert(key, value);
    }
}

struct Read<'a>(&'a HeaderMap);

impl Extractor for Read<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(|value| value.as_str())
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(name, _)| name.as_ref()).collect()
    }
}

/// The context of the current `tracing` span, or the attached one where the span has none.
fn current() -> Context {
    let of_span = Span::current().context();
    if of_span.span().span_context().is_valid() {
        of_span
    } else {
        Context::current()
    }
}

/// Writes the current context into `headers`.
pub(crate) fn inject(headers: &mut HeaderMap) {
    let context = current();
    global::get_text_map_propagator(|propagator| {
        propagator.inject_context(&context, &mut Write(headers))
    });
}

/// The context that `headers` carry; an empty one where they carry none.
pub(crate) fn extract(headers: Option<&HeaderMap>) -> Context {
    match headers {
        Some(headers) => global::get_text_map_propagator(|propagator| {
            propagator.extract_with_context(&Context::new(), &Read(headers))
        }),
        None => Context::new(),
    }
}
