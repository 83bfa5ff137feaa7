//! What a service graph is made of.

use std::time::{Duration, Instant};

use integration::{
    http,
    otlp::{Captured, Collector},
    tempo::{Config, Processor},
};
use protocol::trace::{span, value};
use replay::{Fault, FaultStage, Rule};
use serde_json::json;

use super::{QUICK, exporting, fleet, fox, srt_fleet};

/// What the emulation of Tempo makes of spans once no half of an edge has anything to wait for.
fn service_graph(spans: &[Captured]) -> Processor {
    let mut processor = Processor::new(Config::shipped());
    let now = Instant::now();
    // As if each came when it began: processes send theirs once a second, in any order.
    let mut spans: Vec<_> = spans.iter().collect();
    spans.sort_by_key(|captured| captured.span.start_time_unix_nano);
    for span in spans {
        processor.push(span, now);
    }
    processor.expire(Duration::ZERO, now);
    processor
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
    fleet.terminate().await;
    let graph = service_graph(&collector.spans());
    assert_eq!(graph.expired().len(), 0, "{:?}", graph.expired());
    let wanted = [
        ["fresco-ar-batcher", "fresco-denoiser", "messaging_system"],
        ["fresco-gateway", "fresco-ar-batcher", "messaging_system"],
        ["user", "fresco-gateway", "virtual_node"],
    ];
    assert_eq!(graph.edges(), wanted);
}

#[tokio::test]
async fn a_message_that_comes_again_is_half_an_edge_and_an_engine_without_spans_a_whole_one() {
    let collector = Collector::start().await;
    let (_server, mut fleet) = srt_fleet(2, exporting(&collector.url(), "grpc")).await;
    fleet.script(&[Rule {
        prompt_contains: "poison".into(),
        stage: FaultStage::Denoise,
        fault: Fault::Fail,
    }]);
    let mut poison = fox(1);
    poison["prompt"] = json!("a poison");
    let failed = http::generate(&fleet.gateway, &poison).await;
    assert_eq!(failed.error().0, "attempts_exhausted");
    fleet.until_queues_empty().await;
    fleet.terminate().await;
    let spans = collector.spans();
    let graph = service_graph(&spans);
    let engine = ["fresco-ar-batcher", value::SRT, "virtual_node"];
    assert!(graph.edges().contains(&engine), "{:?}", graph.edges());
    let again = graph.expired().iter().map(|edge| edge.server.as_ref());
    let again: Vec<_> = again.map(|span| span.unwrap().name()).collect();
    let attempts = spans
        .iter()
        .filter(|span| span.name() == span::PROCESS_DENOISE);
    assert!(attempts.count() > 2);
    // All that come after the first are the same half.
    assert_eq!(again, [span::PROCESS_DENOISE]);
}
