//! The span of a message being worked on.

use opentelemetry::trace::Status;
use tracing::{Span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::Delivery;

impl Delivery {
    /// A consumer span, child of the span that published the message: one span per attempt, so that a dead worker's
    /// attempt stays visible. Names follow OpenTelemetry's messaging conventions; `nats` is a custom system there.
    pub fn span(&self) -> Span {
        let span = info_span!(
            "process",
            otel.kind = "consumer",
            messaging.system = "nats",
            messaging.operation.name = "process",
            messaging.destination.name = %self.subject,
            messaging.nats.delivered_count = self.delivered,
        );
        if let Err(error) = span.set_parent(self.context.clone()) {
            span.set_status(Status::error(error.to_string()));
        }
        span
    }
}
