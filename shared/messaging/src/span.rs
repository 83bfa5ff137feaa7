//! The spans of messages, as OpenTelemetry's messaging conventions have them: stored by one process, worked on by
//! another, whose span is a child of the first one's, so that a service graph has its edges.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::{
    Context, KeyValue, global,
    trace::{Span as _, Status, TraceContextExt, Tracer},
};
use protocol::{
    Attempt, OutputLife, Subject, Tenant, UnixMillis, WorkStage, WorkerId,
    topology::ConsumerSpec,
    trace::{attribute, span, value},
};
use tracing::{Instrument, Span, debug_span, info_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

use crate::{Bus, Delivery, PublishError, publish::Publish};

impl Delivery {
    /// A consumer span, child of the span that published the message: one span per attempt.
    pub fn span(&self) -> Span {
        let subject = &self.subject;
        let (bus, found) = (self.lease.bus(), &self.place);
        let destination = bus.prefix().subject(subject);
        // Signed: of other whole numbers the layer makes texts.
        let delivered = i64::try_from(self.delivered).unwrap_or(i64::MAX);
        let span = match subject {
            Subject::Ar(..) => info_span!(
                span::PROCESS_AR,
                otel.kind = "consumer",
                { attribute::MESSAGING_DESTINATION_NAME } = destination,
                { attribute::MESSAGING_NATS_DELIVERED_COUNT } = delivered,
            ),
            Subject::Denoise(..) => info_span!(
                span::PROCESS_DENOISE,
                otel.kind = "consumer",
                { attribute::MESSAGING_DESTINATION_NAME } = destination,
                { attribute::MESSAGING_NATS_DELIVERED_COUNT } = delivered,
            ),
            // No queue has such a message.
            Subject::Result(_) | Subject::Done(_) | Subject::Progress(_) | Subject::Dead(_) => {
                return Span::none();
            }
        };
        if let Err(error) = span.set_parent(self.context.clone()) {
            tracing::trace!(%error, "the message's trace is not joined");
        }
        describe(&span, subject, (value::PROCESS, value::PROCESS));
        let ConsumerSpec { stream, name, .. } = &*found.consumer;
        span.set_attribute(attribute::MESSAGING_CONSUMER_GROUP_NAME, name.clone());
        locate(&span, bus, (found.id.as_deref(), stream));
        place(&span, found.sequence);
        if self.names_its_tenant() {
            let tenant = self.tenant.as_ref().map_or(Tenant::NONE, Tenant::as_str);
            span.set_attribute(attribute::TENANT, tenant.to_owned());
        }
        span
    }

    /// Its trace is its tenant's by the spans of the gateway and of the request at the AR stage, whichever of them lived to
    /// be sent; a dead letter that is replayed has a trace of its own. Not by those of ten outputs: a search shows as many
    /// spans of a trace, and they are not what it was made for.
    fn names_its_tenant(&self) -> bool {
        matches!(self.subject, Subject::Ar(..)) || !self.is_traced()
    }

    /// Whether it came with the trace of who published it.
    pub fn is_traced(&self) -> bool {
        self.context.span().span_context().is_valid()
    }

    /// Who published it, for what is to be told beside [`Delivery::span`].
    pub fn publisher(&self) -> Publisher {
        Publisher(self.context.clone())
    }
}

/// Stores a message in a producer span of its own, where a collector gets it.
pub(crate) async fn publishing(
    bus: &Bus,
    subject: &Subject,
    publish: &Publish,
) -> Result<(), PublishError> {
    let queues = bus.topology();
    let (span, queue) = match subject {
        Subject::Ar(..) => (
            debug_span!(span::PUBLISH_AR, otel.kind = "producer"),
            &queues.ar,
        ),
        Subject::Denoise(..) => (
            debug_span!(span::PUBLISH_DENOISE, otel.kind = "producer"),
            &queues.denoise,
        ),
        Subject::Result(_) | Subject::Done(_) | Subject::Progress(_) | Subject::Dead(_) => {
            return bus.publish_at(publish).await.map(|_| ());
        }
    };
    if span.is_disabled() {
        // Entered, it would hide the span that the message is to go with.
        return bus.publish_at(publish).await.map(|_| ());
    }
    span.set_attribute(
        attribute::MESSAGING_DESTINATION_NAME,
        publish.subject.clone(),
    );
    describe(&span, subject, (value::PUBLISH, value::SEND));
    locate(&span, bus, (publish.id.as_deref(), &queue.name));
    match bus.publish_at(publish).instrument(span.clone()).await {
        Ok(stored) => {
            if let Some(sequence) = stored {
                place(&span, sequence);
            }
            Ok(())
        }
        Err(error) => {
            span.set_attribute(attribute::ERROR_TYPE, error.code().to_string());
            span.set_status(Status::error(error.code().to_string()));
            Err(error)
        }
    }
}

/// Where the message is to be found.
fn locate(span: &Span, bus: &Bus, (id, stream): (Option<&str>, &str)) {
    if let Some(id) = id {
        span.set_attribute(attribute::MESSAGING_MESSAGE_ID, id.to_owned());
    }
    span.set_attribute(attribute::MESSAGING_NATS_STREAM, stream.to_owned());
    if let Some(server) = bus.server() {
        span.set_attribute(attribute::SERVER_ADDRESS, server.host);
        span.set_attribute(attribute::SERVER_PORT, i64::from(server.port));
    }
}

/// Its place in the stream.
fn place(span: &Span, sequence: u64) {
    let sequence = i64::try_from(sequence).unwrap_or(i64::MAX);
    span.set_attribute(attribute::MESSAGING_NATS_STREAM_SEQUENCE, sequence);
}

/// What is known of a message. Not as fields: each would be in every log line.
fn describe(span: &Span, subject: &Subject, (operation, kind): (&'static str, &'static str)) {
    let (template, class, job, index) = match subject {
        Subject::Ar(class, job) => (value::AR_TEMPLATE, class, job, None),
        Subject::Denoise(class, output) => {
            let index = i64::from(output.index.get());
            (value::DENOISE_TEMPLATE, class, &output.job, Some(index))
        }
        Subject::Result(_) | Subject::Done(_) | Subject::Progress(_) | Subject::Dead(_) => return,
    };
    span.set_attribute(attribute::MESSAGING_SYSTEM, value::NATS);
    span.set_attribute(attribute::MESSAGING_OPERATION_NAME, operation);
    span.set_attribute(attribute::MESSAGING_OPERATION_TYPE, kind);
    span.set_attribute(attribute::MESSAGING_DESTINATION_TEMPLATE, template);
    span.set_attribute(attribute::CLASS, class.to_string());
    span.set_attribute(attribute::JOB_ID, job.to_string());
    if let Some(index) = index {
        span.set_attribute(attribute::OUTPUT_INDEX, index);
    }
}

/// The context in which a message was published.
#[derive(Debug, Clone)]
pub struct Publisher(Context);

impl Publisher {
    /// Tells of the attempt that `life` has open at `stage`, now that `finder` has the message: nobody heard of its
    /// worker again, and the span that it had began is lost with it. A span of its own, with the times that are known,
    /// beside those of the message's other attempts.
    pub fn tell_lost(
        &self,
        life: &OutputLife,
        stage: WorkStage,
        finder: &WorkerId,
        now: UnixMillis,
    ) {
        let of_stage = life
            .attempts
            .iter()
            .filter(|attempt| attempt.stage == stage);
        let Some((number, attempt)) = (1_i64..).zip(of_stage).last() else {
            return;
        };
        if !self.0.span().span_context().is_sampled() || !is_lost(attempt, finder) {
            return;
        }
        let tracer = global::tracer(env!("CARGO_PKG_NAME"));
        let attributes = [
            KeyValue::new(attribute::JOB_ID, life.output.job.to_string()),
            KeyValue::new(attribute::OUTPUT_INDEX, i64::from(life.output.index.get())),
            KeyValue::new(attribute::WORKER, attempt.worker.to_string()),
            KeyValue::new(attribute::ATTEMPT, number),
            KeyValue::new(attribute::ERROR_TYPE, value::WORKER_LOST),
        ];
        let lost = tracer
            .span_builder(span::LOST_ATTEMPT)
            .with_start_time(wall_clock(attempt.started_at))
            .with_attributes(attributes);
        let mut lost = tracer.build_with_context(lost, &self.0);
        lost.set_status(Status::error(value::WORKER_LOST));
        // By two clocks: a span that ends before it starts is none.
        lost.end_with_timestamp(wall_clock(now.max(attempt.started_at)));
    }
}

fn is_lost(attempt: &Attempt, finder: &WorkerId) -> bool {
    attempt.outcome.is_none() && attempt.worker != *finder
}

fn wall_clock(at: UnixMillis) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(at)
}
