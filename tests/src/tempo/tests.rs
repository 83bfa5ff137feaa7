//! The rule for edges, by spans made up for it.

use std::sync::Arc;

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::Span,
};

use super::*;

const WAIT: Duration = Duration::from_secs(600);

fn text(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue {
            value: Some(Value::StringValue(value.to_owned())),
        }),
        ..KeyValue::default()
    }
}

/// A span of `service`: its id, its parent's (0 for none), and what it carries.
fn span(
    kind: SpanKind,
    service: &str,
    (id, parent): (u8, u8),
    attributes: &[KeyValue],
) -> Captured {
    let id_of = |number: u8| {
        if number == 0 {
            Vec::new()
        } else {
            vec![number; 8]
        }
    };
    let span = Span {
        trace_id: vec![7; 16],
        span_id: id_of(id),
        parent_span_id: id_of(parent),
        kind: kind.into(),
        attributes: attributes.to_vec(),
        ..Span::default()
    };
    let resource: Arc<[KeyValue]> = Arc::new([text("service.name", service)]);
    Captured { span, resource }
}

fn of(processor: &Processor, name: &str) -> u64 {
    let counters = processor.counters.iter();
    let of_name = counters.filter(|((other, _), _)| *other == name);
    of_name.map(|(_, count)| count).sum()
}

fn processor(edges_max: usize) -> Processor {
    let config = Config {
        edges_max,
        ..Config::shipped()
    };
    Processor::new(config)
}

#[test]
fn an_edge_to_whoever_sends_no_spans_counts_when_the_wait_is_over_and_has_not_expired() {
    let (mut tempo, start) = (processor(10), Instant::now());
    let server = span(SpanKind::Server, "gateway", (1, 0), &[]);
    let peer = [text("service.peer.name", "srt")];
    let call = span(SpanKind::Client, "batcher", (2, 1), &peer);
    for span in [&server, &call] {
        tempo.push(span, start);
    }
    tempo.expire(WAIT, start + WAIT / 2);
    assert_eq!((of(&tempo, REQUESTS), of(&tempo, EXPIRED)), (0, 0));
    tempo.expire(WAIT, start + WAIT);
    let edges = [
        ["batcher", "srt", "virtual_node"],
        ["user", "gateway", "virtual_node"],
    ];
    assert_eq!(tempo.edges(), edges);
    assert_eq!((of(&tempo, REQUESTS), of(&tempo, EXPIRED)), (2, 0));
}

#[test]
fn a_request_in_a_trace_of_its_clients_own_and_a_message_that_nobody_takes_expire() {
    let (mut tempo, start) = (processor(10), Instant::now());
    let server = span(SpanKind::Server, "gateway", (1, 9), &[]);
    // Where the broker is makes no peer of it.
    let broker = [text("server.address", "nats")];
    let message = span(SpanKind::Producer, "gateway", (2, 1), &broker);
    for span in [&server, &message] {
        tempo.push(span, start);
    }
    tempo.expire(WAIT, start + WAIT);
    assert_eq!((of(&tempo, REQUESTS), of(&tempo, EXPIRED)), (0, 2));
}

#[test]
fn a_half_that_finds_no_room_is_left_out_and_told() {
    let (mut tempo, start) = (processor(1), Instant::now());
    for id in 1..=3 {
        tempo.push(&span(SpanKind::Producer, "gateway", (id, 0), &[]), start);
    }
    // The other half of one that has room needs none.
    tempo.push(&span(SpanKind::Consumer, "batcher", (9, 1), &[]), start);
    assert_eq!((of(&tempo, EDGES), of(&tempo, DROPPED)), (1, 2));
    assert_eq!(of(&tempo, REQUESTS), 1);
}
