//! What a service graph is made of.

use std::collections::{BTreeSet, HashMap};

use integration::{
    http,
    otlp::{Captured, Collector},
};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::json;

use super::{QUICK, exporting, fleet, fox, terminate};

/// What Tempo's metrics generator makes of spans, by the rule in its documentation: a client or producer is one end of
/// an edge under its own id, a server or consumer the other one under its parent's; a server without a parent is called
/// by the user, a client that nobody answers is unpaired unless it names a peer. This is an emulation: no Tempo runs
/// here.
fn service_graph(spans: &[Captured]) -> (BTreeSet<(String, String)>, Vec<String>) {
    let service = |span: &Captured| span.process("service.name").unwrap_or_default().to_owned();
    let mut ends: HashMap<_, (Option<String>, Option<String>)> = HashMap::new();
    for captured in spans {
        let Captured { span, .. } = captured;
        let of_trace = |id: &Vec<u8>| (span.trace_id.clone(), id.clone());
        match captured.kind() {
            SpanKind::Client | SpanKind::Producer => {
                ends.entry(of_trace(&span.span_id)).or_default().0 = Some(service(captured));
            }
            SpanKind::Server | SpanKind::Consumer => {
                let (from, to) = ends.entry(of_trace(&span.parent_span_id)).or_default();
                *to = Some(service(captured));
                if span.parent_span_id.is_empty() {
                    *from = Some("user".to_owned());
                }
            }
            _ => {}
        }
    }
    let (mut edges, mut unpaired) = (BTreeSet::new(), Vec::new());
    for end in ends.into_values() {
        match end {
            (Some(from), Some(to)) => drop(edges.insert((from, to))),
            end => unpaired.push(format!("{end:?}")),
        }
    }
    (edges, unpaired)
}

#[tokio::test]
async fn a_service_graph_has_every_edge_and_no_span_without_its_other_end() {
    let collector = Collector::start().await;
    let mut fleet = fleet(QUICK, 2, exporting(&collector.url(), "http/protobuf")).await;
    for n in [1, 3] {
        let mut request = fox(2);
        request["n"] = json!(n);
        let answer = http::generate(&fleet.gateway, &request).await;
        assert_eq!(answer.data().len(), n);
    }
    fleet.until_queues_empty().await;
    terminate(&mut fleet).await;
    let (edges, unpaired) = service_graph(&collector.spans());
    assert!(unpaired.is_empty(), "{unpaired:?}");
    let wanted = [
        ("fresco-ar-batcher", "fresco-denoiser"),
        ("fresco-gateway", "fresco-ar-batcher"),
        ("user", "fresco-gateway"),
    ];
    let wanted = wanted.map(|(from, to)| (from.to_owned(), to.to_owned()));
    assert_eq!(edges, BTreeSet::from(wanted));
}
