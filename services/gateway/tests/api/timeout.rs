//! A request's own deadline.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::deployment::{Deployment, next_job, until};

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
    // Nothing is left for a worker to find out.
    until("the empty queue", || async {
        deployment.queued(job.job).await == 0
    })
    .await;
    gateway.stop().await;
}
