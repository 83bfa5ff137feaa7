//! What a queue that is full leaves of the requests it refused.

use integration::{
    fleet::{END_WITHIN, Fleet},
    otlp::{Collector, Filter, Seen, Tree},
};
use protocol::trace::span;
use serde_json::Value;

use super::{QUICK, SAMPLED, SERVER, TRACE, exporting, fleet, fox};

/// Fills the queue of requests with what no AR-batcher asks for, but for less than a request.
async fn fill_ar_queue(fleet: &Fleet) {
    let client = fleet.broker.client().await;
    let subject = fleet.bus.topology().ar.subjects.replace('>', "nobody");
    for bytes in [250_000, 10_000, 100] {
        let mut full = false;
        while !full {
            let answer = client.request(subject.clone(), vec![0; bytes].into()).await;
            let answer: Value = serde_json::from_slice(&answer.unwrap().payload).unwrap();
            full = !answer["error"].is_null();
        }
    }
}

#[tokio::test]
async fn a_request_that_found_its_queue_full_is_three_spans_of_which_a_collector_keeps_none() {
    let collector = Collector::start().await;
    let flags = exporting(&collector.url(), "grpc");
    let fleet = fleet(QUICK, 1, flags.clone()).await;
    // Admission would refuse it before there is a job.
    let lets_in = ["--queue-outputs-max", "4294967295"].map(str::to_owned);
    let flags: Vec<_> = flags.iter().chain(&lets_in).map(String::as_str).collect();
    let (mut gateway, api) = fleet.start_gateway("lets-in", &flags).await;
    fill_ar_queue(&fleet).await;
    let refused = api.generate(&fox(1), &[("traceparent", SAMPLED)]).await;
    let refused = refused.unwrap();
    assert_eq!(
        (refused.status.as_u16(), refused.error().0),
        (429, "queue_full")
    );
    gateway.terminate(END_WITHIN).await;
    let tree = Tree::of(&collector.spans(), TRACE);
    let mut names: Vec<_> = tree.spans.iter().map(|span| span.name()).collect();
    names.sort_unstable();
    assert_eq!(names, [SERVER, span::JOB, span::PUBLISH_AR]);
    let filter = Filter::shipped("filter/jobless");
    for span in &tree.spans {
        assert!(filter.leaves_out(&Seen::from(span)), "{span:?}");
    }
}
