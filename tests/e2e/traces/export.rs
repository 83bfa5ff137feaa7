//! Spans on their way out: the last ones of a process, those that nobody wants, collectors that are dead or silent.

use std::net::TcpListener;

use integration::{
    fleet::{Fleet, until},
    free_port, http,
    otlp::{Captured, Collector, Tree},
};

use super::{QUICK, SAMPLED, TRACE, exporting, fleet, fox, generate_in};

const UNSAMPLED: &str = "00-11111111111111111111111111111111-2222222222222222-00";

fn services(spans: &[Captured]) -> Vec<&str> {
    let mut services: Vec<_> = spans
        .iter()
        .filter_map(|span| span.process("service.name"))
        .collect();
    services.sort_unstable();
    services.dedup();
    services
}

#[tokio::test]
async fn the_last_spans_before_sigterm_arrive_over_both_protocols() {
    for protocol in ["grpc", "http/protobuf"] {
        let collector = Collector::start().await;
        let mut fleet = fleet(QUICK, 1, exporting(&collector.url(), protocol)).await;
        let answer = generate_in(&fleet, SAMPLED, &fox(2)).await;
        assert_eq!(answer.data().len(), 1);
        fleet.terminate().await;

        let tree = Tree::of(&collector.spans(), TRACE);
        let wanted = ["fresco-ar-batcher", "fresco-denoiser", "fresco-gateway"];
        assert_eq!(services(&tree.spans), wanted, "{protocol}");
        for span in &tree.spans {
            let namespace = fleet.broker.prefix().to_string();
            assert_eq!(span.process("service.namespace"), Some(&*namespace));
            assert!(span.process("service.version").is_some());
            let role = span.process("service.name").unwrap().replace("fresco-", "");
            let name = span.process("service.instance.id").unwrap();
            assert!(name.starts_with(&role), "{name} is a {role}");
        }
    }
}

#[tokio::test]
async fn an_unsampled_parent_gives_no_spans() {
    let collector = Collector::start().await;
    let mut fleet = fleet(QUICK, 1, exporting(&collector.url(), "grpc")).await;
    for parent in [UNSAMPLED, SAMPLED] {
        assert_eq!(generate_in(&fleet, parent, &fox(2)).await.data().len(), 1);
    }
    fleet.terminate().await;
    let spans = collector.spans();
    let unsampled = Tree::of(&spans, "11111111111111111111111111111111");
    assert_eq!(unsampled.spans.len(), 0, "{}", unsampled.shown());
    assert!(!Tree::of(&spans, TRACE).spans.is_empty());
}

#[tokio::test]
async fn a_dead_collector_costs_spans_and_nothing_else() {
    for protocol in ["grpc", "http/protobuf"] {
        let nobody = format!("http://127.0.0.1:{}", free_port());
        let mut fleet = fleet(QUICK, 1, exporting(&nobody, protocol)).await;
        let told = |fleet: &Fleet| {
            let log = fleet.gateway_process.log();
            log.matches("the collector takes no spans").count()
        };
        until("the gateway has found out", || async {
            let answer = http::generate(&fleet.gateway, &fox(1)).await;
            assert_eq!(answer.data().len(), 1);
            (told(&fleet) > 0).then_some(())
        })
        .await;
        assert_eq!(
            http::generate(&fleet.gateway, &fox(1)).await.data().len(),
            1
        );
        fleet.terminate().await;
        assert_eq!(told(&fleet), 1, "{}", fleet.gateway_process.log());
    }
}

#[tokio::test]
async fn a_collector_that_never_answers_holds_no_process_up() {
    // The kernel takes the connections; nobody reads from them.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    for protocol in ["grpc", "http/protobuf"] {
        let mut fleet = fleet(QUICK, 1, exporting(&url, protocol)).await;
        for _ in 0..3 {
            let answer = http::generate(&fleet.gateway, &fox(1)).await;
            assert_eq!(answer.data().len(), 1);
        }
        fleet.terminate().await;
    }
}
