//! What is said of a span besides its fields: an error, an event. For crates that know `tracing` only.

use std::{borrow::Cow, collections::HashMap};

use opentelemetry::{
    Context, KeyValue, StringValue, global,
    trace::{Status, TraceContextExt, TraceId},
};
use protocol::{ErrorCode, trace::attribute};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// A value of an attribute.
pub use opentelemetry::Value;

/// `span` ends with this error. Where nothing of ours went wrong it ends without one: what was cancelled, or refused for
/// what it asks, would be a failure to everybody who counts spans by their `error.type`.
pub fn fail(span: &Span, code: ErrorCode) {
    if code == ErrorCode::Cancelled || code.is_refusal() {
        return;
    }
    span.set_attribute(attribute::ERROR_TYPE, code.as_str());
    span.set_status(Status::error(code.as_str()));
}

/// `span` ends with an error of this type: the status of an answer, or what no client hears of.
pub fn fail_as(span: &Span, error_type: impl Into<Cow<'static, str>>) {
    let error_type = StringValue::from(error_type.into());
    span.set_attribute(attribute::ERROR_TYPE, error_type.clone());
    span.set_status(Status::error(error_type.to_string()));
}

/// Says more of `span`.
pub fn set(span: &Span, name: &'static str, value: impl Into<Value>) {
    span.set_attribute(name, value);
}

/// Something that happened within `span`, now.
pub fn event<const N: usize>(
    span: &Span,
    name: &'static str,
    attributes: [(&'static str, Value); N],
) {
    let attributes = attributes.map(|(name, value)| KeyValue::new(name, value));
    span.add_event(name, attributes.into());
}

/// A span's place in its trace, for work that may outlive the span.
///
/// A span ends, and is sent, with its last handle, and a span below it holds one: whoever enters it on a thread that may
/// never come back keeps it from ending.
#[derive(Debug, Clone)]
pub struct Place(Context);

impl Place {
    /// Below `span`, without a handle to it.
    pub fn below(span: &Span) -> Self {
        Self(span.context())
    }

    /// Runs `work` there: its spans are children of the span, and its log lines have the ids.
    pub fn run<T>(self, work: impl FnOnce() -> T) -> T {
        let _attached = self.0.attach();
        work()
    }
}

/// Whether a collector is to get `span`.
pub fn is_sampled(span: &Span) -> bool {
    span.context().span().span_context().is_sampled()
}

/// What a request to another service takes along, so that its spans join the trace: names and values of headers.
pub fn outgoing() -> HashMap<String, String> {
    let mut headers = HashMap::new();
    global::get_text_map_propagator(|propagator| propagator.inject(&mut headers));
    headers
}

/// The id of the trace that is being worked on; `None` outside of any.
pub fn trace_id() -> Option<String> {
    let trace = Context::map_current(|context| context.span().span_context().trace_id());
    (trace != TraceId::INVALID).then(|| trace.to_string())
}
