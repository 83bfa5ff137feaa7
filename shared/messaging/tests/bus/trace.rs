use opentelemetry::{
    Context, global,
    trace::{FutureExt, SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;

use crate::site::{Site, denoise_job, within};

#[tokio::test]
async fn the_publishers_trace_context_comes_with_the_message_a18() {
    global::set_text_map_propagator(TraceContextPropagator::new());
    let site = Site::start().await;
    let state = TraceState::from_key_value([("fresco", "1")]).unwrap();
    let sent = SpanContext::new(
        TraceId::from(7),
        SpanId::from(9),
        TraceFlags::SAMPLED,
        true,
        state,
    );
    let context = Context::new().with_remote_span_context(sent.clone());
    site.enqueue(&denoise_job(1)).with_context(context).await;
    let mut queue = site.queue().await;
    let delivery = within("delivered", queue.next()).await;
    assert!(delivery.is_traced());
    let span = delivery.context.span();
    let received = span.span_context();
    assert_eq!(
        (received.trace_id(), received.span_id()),
        (sent.trace_id(), sent.span_id())
    );
    assert_eq!(
        (received.trace_state(), received.is_sampled()),
        (sent.trace_state(), true)
    );
}
