//! Clients that leave before their pictures are there.

use protocol::{ArJob, ErrorCode, OutputResult};
use reqwest::Method;
use tokio::task::JoinSet;

use crate::deployment::{
    Deployment, GENERATIONS, JSON, TestGateway, next_job, result, send, until,
};

/// Asks for two pictures and leaves when a worker has the request.
async fn ask_and_leave(
    deployment: &Deployment,
    gateway: &TestGateway,
    headers: &[(&'static str, &'static str)],
) -> ArJob {
    let mut queue = deployment.ar_queue().await;
    let (url, headers) = (gateway.url.clone(), [&[JSON], headers].concat());
    let client = JoinSet::from_iter([async move {
        let body = br#"{"prompt":"p","n":2}"#.to_vec();
        send(&url, Method::POST, GENERATIONS, &headers, body).await
    }]);
    let (job, delivery) = next_job(&mut queue).await;
    drop(client);
    // The message stays with its worker: a client that leaves takes nothing out of its hands.
    drop(delivery);
    job
}

async fn ends(deployment: &Deployment, job: &ArJob) -> Vec<Option<OutputResult>> {
    let ends = job
        .outputs
        .iter()
        .map(|output| deployment.bus.result(job.job.output(output.index)));
    futures::future::try_join_all(ends).await.unwrap()
}

#[tokio::test]
async fn a_job_whose_client_leaves_is_cancelled() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let job = ask_and_leave(&deployment, &gateway, &[]).await;
    until("the cancel", || async {
        let ends = ends(&deployment, &job).await;
        ends.iter().all(|end| {
            let outcome = end.as_ref().map(|end| &end.outcome);
            matches!(outcome, Some(Err(error)) if error.code == ErrorCode::Cancelled)
        })
    })
    .await;
    until("the empty queue", || async {
        deployment.queued(job.job).await == 0
    })
    .await;
    assert_eq!(gateway.job(job.job).await["status"], "cancelled");
    gateway.stop().await;
}

#[tokio::test]
async fn a_job_goes_on_without_its_client_when_it_was_asked_to() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    for headers in [
        [("fresco-on-disconnect", "continue")],
        [("idempotency-key", "mine")],
        [("prefer", "respond-async")],
    ] {
        let job = ask_and_leave(&deployment, &gateway, &headers).await;
        // Long after the client's end was seen: this request comes behind it.
        let content = format!("/v1/images/{}-0/content", job.job);
        let running = gateway.get(&content).await;
        assert_eq!(
            (running.status.as_u16(), running.error_code().as_str()),
            (503, "not_ready")
        );
        assert!(running.headers.contains_key("retry-after"));
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert_eq!(ends(&deployment, &job).await, [None, None], "{headers:?}");
        for output in &job.outputs {
            let result = result(&job, output.index, None);
            deployment.bus.put_result(&result).await.unwrap();
        }
        assert_eq!(gateway.get(&content).await.status, 200, "{headers:?}");
        deployment.bus.withdraw(job.job).await.unwrap();
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_gateway_that_stops_cancels_nothing() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--grace-s=0.5"]).await;
    let mut queue = deployment.ar_queue().await;
    let (url, token) = (gateway.url.clone(), gateway.shutdown.token.clone());
    let client = async move {
        let body = br#"{"prompt":"p"}"#.to_vec();
        send(&url, Method::POST, GENERATIONS, &[JSON], body).await
    };
    let mut client = JoinSet::from_iter([client]);
    let (job, _delivery) = next_job(&mut queue).await;
    token.cancel();
    client.abort_all();
    gateway.running.finish().await;
    drop(client);
    assert_eq!(ends(&deployment, &job).await, [None]);
    let other = deployment.ready_gateway(&[]).await;
    assert_eq!(
        other.job(job.job).await["outputs"][0]["error"],
        serde_json::Value::Null
    );
    other.stop().await;
}
