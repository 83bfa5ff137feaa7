//! What a trace takes along from process to process, and to servers that are none of ours.

use std::time::Duration;

use async_nats::HeaderMap;
use futures::StreamExt;
use integration::{
    http::Answer,
    otlp::Collector,
    srt::{Fault, Rule},
};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use protocol::trace::{attribute, span};
use reqwest::Client;
use tokio::time::timeout;

use super::{QUICK, SAMPLED, TRACE, exporting, fleet, fox, generate_in, srt_fleet, tree_of};

/// A message that is on its way.
const SOON: Duration = Duration::from_secs(20);

#[tokio::test]
async fn tracestate_and_baggage_of_a_client_reach_the_message_of_the_denoiser() {
    const STATE: &str = "vendor=opaque,other=1";
    const BAGGAGE: &str = "tenant.tier=gold";
    let collector = Collector::start().await;
    let fleet = fleet(QUICK, 1, exporting(&collector.url(), "grpc")).await;
    // As an onlooker: a stream takes what is published beside whoever listens.
    let client = fleet.broker.client().await;
    let subjects = fleet.bus.topology().denoise.subjects.clone();
    let mut messages = client.subscribe(subjects).await.unwrap();
    client.flush().await.unwrap();
    let url = format!("{}/v1/images/generations", fleet.gateway);
    let request = Client::new()
        .post(url)
        .header("traceparent", SAMPLED)
        .header("tracestate", STATE)
        .header("baggage", BAGGAGE)
        .json(&fox(1));
    let answer = Answer::read(request.send().await.unwrap()).await.unwrap();
    assert_eq!(answer.data().len(), 1);

    let message = timeout(SOON, messages.next()).await.unwrap().unwrap();
    let headers = message.headers.unwrap();
    let header = |headers: &HeaderMap, name: &str| headers.get(name).map(ToString::to_string);
    assert_eq!(header(&headers, "tracestate"), Some(STATE.to_owned()));
    assert_eq!(header(&headers, "baggage"), Some(BAGGAGE.to_owned()));
    let publish = tree_of(&collector, TRACE, 1).await;
    let publish = publish.only(span::PUBLISH_DENOISE);
    assert_eq!(header(&headers, "traceparent"), Some(publish.traceparent()));
    assert_eq!(publish.span.trace_state, STATE);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_an_srt_server_is_a_client_span_and_takes_the_trace_there() {
    let collector = Collector::start().await;
    let (server, fleet) = srt_fleet(1, exporting(&collector.url(), "grpc")).await;
    // The first call fails, and is made again.
    server.script(&[Rule {
        seed: None,
        times: Some(1),
        fault: Fault::ServerError,
    }]);
    assert_eq!(generate_in(&fleet, SAMPLED, &fox(1)).await.data().len(), 1);

    let tree = tree_of(&collector, TRACE, 1).await;
    let calls = tree.named(span::SRT_GENERATE);
    let seen = calls.iter().map(|call| {
        assert_eq!(call.kind(), SpanKind::Client);
        assert_eq!(tree.ancestry(call)[..2], [span::AR_ENGINE, span::AR_BATCH]);
        assert_eq!(call.text(attribute::HTTP_REQUEST_METHOD), Some("POST"));
        assert_eq!(call.text(attribute::SERVER_ADDRESS), Some("127.0.0.1"));
        let port = call.number(attribute::SERVER_PORT);
        assert_eq!(port, Some(server.address().port().into()));
        let status = call.number(attribute::HTTP_RESPONSE_STATUS_CODE);
        (status, call.text(attribute::ERROR_TYPE), call.failed())
    });
    let wanted = [(Some(500), Some("500"), true), (Some(200), None, false)];
    assert_eq!(seen.collect::<Vec<_>>(), wanted, "{}", tree.shown());
    let told: Vec<_> = calls.iter().map(|call| call.traceparent()).collect();
    assert_eq!(server.seen().traceparents, told);
}
