//! What went wrong is in the trace: attempts that were lost, attempts that failed, and nothing of what was cancelled.

use integration::{
    api::Api,
    otlp::{Captured, Collector, Tree},
};
use protocol::trace::{attribute, span, value};
use replay::{ArTimes, DenoiseTimes, Fault, FaultStage, Rule, Table};
use reqwest::Client;
use serde_json::json;
use tokio::task::JoinSet;

use super::{SAMPLED, SERVER, SLOW, TRACE, exporting, fleet, fox, generate_in, tree_of};

#[tokio::test]
async fn an_attempt_that_is_lost_to_kill_9_is_an_error_in_the_trace() {
    let collector = Collector::start().await;
    let mut fleet = fleet(SLOW, 2, exporting(&collector.url(), "grpc")).await;
    let (gateway, request) = (fleet.gateway.clone(), fox(30));
    let url = format!("{gateway}/v1/images/generations");
    let client = Client::new().post(url).header("traceparent", SAMPLED);
    let job = JoinSet::from_iter([client.json(&request).send()]);
    let (dead, _) = fleet.until_painting().await;
    let workers = fleet.bus.workers().await.unwrap();
    let process = fleet.denoisers[dead].id();
    let worker = workers.iter().find(|worker| worker.process == process);
    let worker = worker.unwrap().worker.to_string();
    fleet.denoisers[dead].kill();
    job.join_all().await.remove(0).unwrap();

    let tree = tree_of(&collector, TRACE, 1).await;
    let lost = tree.only(span::LOST_ATTEMPT);
    assert!(lost.failed());
    assert_eq!(lost.text(attribute::WORKER), Some(worker.as_str()));
    assert_eq!(lost.text(attribute::ERROR_TYPE), Some(value::WORKER_LOST));
    assert_eq!(lost.number(attribute::ATTEMPT), Some(1));
    let next = tree.only(span::PROCESS_DENOISE);
    assert_eq!(next.number(attribute::ATTEMPT), Some(2));
    assert!(!next.failed());
    assert_eq!(tree.ancestry(lost), tree.ancestry(next), "{}", tree.shown());
    assert!(lost.interval().0 < next.interval().0);
}

#[tokio::test]
async fn a_failure_is_an_error_of_its_attempts_and_a_cancelled_job_is_none() {
    let collector = Collector::start().await;
    let fleet = fleet(SLOW, 2, exporting(&collector.url(), "grpc")).await;
    fleet.script(&[Rule {
        prompt_contains: "poison".into(),
        stage: FaultStage::Denoise,
        fault: Fault::Fail,
    }]);
    let mut poison = fox(1);
    poison["prompt"] = json!("a poison");
    let failed = generate_in(&fleet, SAMPLED, &poison).await;
    assert_eq!(failed.error().0, "attempts_exhausted");
    let tree = collector
        .until("the trace is whole", |spans| {
            let tree = Tree::of(spans, TRACE);
            (tree.named(span::JOB).len() == 1).then_some(tree)
        })
        .await;
    let server = tree.only(SERVER);
    assert!(server.failed());
    assert_eq!(server.text(attribute::ERROR_TYPE), Some("500"));
    let job = tree.only(span::JOB);
    assert!(job.failed());
    let code = job.text(attribute::ERROR_TYPE);
    assert_eq!(code, Some("attempts_exhausted"));
    let attempts = collector
        .until("every attempt is there", |spans| {
            let tree = Tree::of(spans, TRACE);
            let attempts = tree.named(span::PROCESS_DENOISE);
            let attempts = attempts.into_iter().filter(|span| span.failed());
            let codes = attempts.filter_map(|span| span.text(attribute::ERROR_TYPE));
            let codes: Vec<_> = codes.map(str::to_owned).collect();
            (codes.len() == 4).then_some(codes)
        })
        .await;
    let count = |code| attempts.iter().filter(|other| *other == code).count();
    // Three tries, and the one that gave it up.
    assert_eq!(
        (count("denoise_failed"), count("attempts_exhausted")),
        (3, 1)
    );

    let api = Api::new(&fleet.gateway);
    let cancelled = api.submit(&fox(100)).await;
    fleet.until_painting().await;
    api.cancel(&cancelled).await;
    collector
        .until("the cancelled job's spans are there", |spans| {
            let of_job = |span: &&Captured| span.text(attribute::JOB_ID) == Some(&cancelled);
            let spans: Vec<_> = spans.iter().filter(of_job).collect();
            let ended = [span::JOB, span::PROCESS_DENOISE];
            let all = ended.map(|name| spans.iter().any(|span| span.name() == name));
            let fine =
                |span: &&&Captured| !span.failed() && span.text(attribute::ERROR_TYPE).is_none();
            assert!(spans.iter().all(|span| fine(&span)), "{spans:?}");
            (all == [true, true]).then_some(())
        })
        .await;
}

/// A row that nobody finishes before its batcher is killed.
const LONG_WRITING: Table = Table {
    ar: ArTimes::new(&[(1, 3_000.0)], 254),
    denoise: DenoiseTimes {
        step_ms: 5.0,
        decode_ms: 5.0,
    },
};

#[tokio::test]
async fn an_attempt_that_its_ar_batcher_is_killed_over_is_an_error_in_the_trace() {
    let collector = Collector::start().await;
    let mut fleet = fleet(LONG_WRITING, 1, exporting(&collector.url(), "grpc")).await;
    let url = format!("{}/v1/images/generations", fleet.gateway);
    let client = Client::new().post(url).header("traceparent", SAMPLED);
    let job = JoinSet::from_iter([client.json(&fox(1)).send()]);
    fleet.until_ar_runs().await;
    let workers = fleet.bus.workers().await.unwrap();
    let process = fleet.ar_batcher.id();
    let worker = workers.iter().find(|worker| worker.process == process);
    let worker = worker.unwrap().worker.to_string();
    fleet.ar_batcher.kill();
    fleet.replace_ar_batcher();
    job.join_all().await.remove(0).unwrap();

    let tree = tree_of(&collector, TRACE, 1).await;
    let lost = tree.only(span::LOST_ATTEMPT);
    assert!(lost.failed());
    assert_eq!(lost.process("service.name"), Some("fresco-ar-batcher"));
    assert_eq!(lost.text(attribute::WORKER), Some(worker.as_str()));
    assert_eq!(lost.text(attribute::ERROR_TYPE), Some(value::WORKER_LOST));
    assert_eq!(lost.number(attribute::ATTEMPT), Some(1));
    let next = tree.only(span::PROCESS_AR);
    assert!(!next.failed());
    assert_eq!(tree.ancestry(lost), tree.ancestry(next), "{}", tree.shown());
    assert!(lost.interval().0 < next.interval().0);
}
