//! A request's own deadline.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::deployment::{Deployment, TestGateway, next_job, until};

/// The line of `/metrics` that says how many outputs ended so.
fn ended(outcome: &str, count: usize) -> String {
    format!("fresco_output_duration_seconds_count{{outcome=\"{outcome}\"}} {count}\n")
}

/// Within what a gateway tries to store an end, and more.
async fn until_ended(gateway: &TestGateway, outcome: &str, count: usize) {
    let line = ended(outcome, count);
    let counted = async {
        while !gateway.metrics().await.contains(&line) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    let counted = timeout(Duration::from_secs(60), counted).await;
    counted.unwrap_or_else(|_| panic!("no {line}"));
}

#[tokio::test]
async fn a_deadline_fires_on_time_although_every_worker_is_stuck() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let body = json!({ "prompt": "p", "n": 2, "timeout_s": 1 });
    let start = Instant::now();
    let asked = async {
        let reply = gateway.generate(&body).await;
        (reply, start.elapsed())
    };
    // The worker holds its message to the end of the test.
    let ((reply, took), (job, _delivery)) = tokio::join!(asked, next_job(&mut queue));
    assert_eq!(
        (reply.status.as_u16(), reply.error_code().as_str()),
        (504, "deadline_exceeded")
    );
    let error = took.abs_diff(Duration::from_secs(1));
    assert!(error <= Duration::from_millis(100), "{took:?}");
    assert_eq!(job.deadline_at, job.accepted_at + 1_000);
    let state = gateway.job(job.job).await;
    assert_eq!(state["status"], "expired");
    // The deployment promised its own deadline and no sooner one.
    let metrics = gateway.metrics().await;
    for (outcome, count) in [("expired_early", 2), ("expired", 0), ("failed", 0)] {
        let line = ended(outcome, count);
        assert!(metrics.contains(&line), "no {line} in {metrics}");
    }
    // Nothing is left for a worker to find out.
    until("the empty queue", || async {
        deployment.queued(job.job).await == 0
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn the_deadline_of_the_deployment_is_its_promise() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--job-timeout-s=1"]).await;
    let reply = gateway.generate(&json!({ "prompt": "p" })).await;
    assert_eq!(reply.error_code(), "deadline_exceeded");
    until_ended(&gateway, "expired", 1).await;
    gateway.stop().await;
}

/// Nobody can say whether there is a picture. Its client has none.
#[tokio::test]
async fn an_output_of_which_the_broker_tells_nothing_at_its_deadline_has_failed() {
    let mut deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let body = json!({ "prompt": "p", "timeout_s": 10 });
    let reply = gateway
        .generate_with(&body, &[("prefer", "respond-async")])
        .await;
    assert_eq!(reply.status, 202);
    drop(next_job(&mut queue).await);
    let counted = until_ended(&gateway, "failed", 1);
    deployment.restart_broker(counted).await;
    gateway.stop().await;
}
