//! Jobs that nobody waits for, deadlines, and what any gateway can tell of any job.

use std::time::{Duration, Instant};

use protocol::{JobRecord, OutputResult, Progress, Stage};
use reqwest::Method;
use serde_json::{Value, json};
use service::clock::unix_millis;

use crate::deployment::{
    Deployment, GENERATIONS, JSON, Reply, TestGateway, next_job, result, until,
};

pub(crate) async fn generate_in_background(gateway: &TestGateway, body: &Value) -> Reply {
    let headers = [JSON, ("prefer", "wait=10, Respond-Async")];
    gateway
        .send(Method::POST, GENERATIONS, &headers, body.to_string().into())
        .await
}

#[tokio::test]
async fn a_job_in_the_background_tells_how_far_it_is_and_then_its_answer() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let accepted = generate_in_background(
        &gateway,
        &json!({ "prompt": "p", "n": 2, "seed": 5, "size": "128x128" }),
    )
    .await;
    assert_eq!(
        (accepted.status.as_u16(), accepted.json()["status"].as_str()),
        (202, Some("queued"))
    );
    assert_eq!(accepted.headers["preference-applied"], "respond-async");
    let id = accepted.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/images/jobs/{id}");
    assert_eq!(
        accepted.headers["location"],
        format!("{}{path}", gateway.url)
    );

    let (job, delivery) = next_job(&mut queue).await;
    assert_eq!(job.job.to_string(), id);
    let progress = Progress {
        output: job.job.output(job.outputs[1].index),
        stage: Stage::Denoise,
        step: 2,
        steps: 4,
    };
    deployment.bus.report_progress(&progress).await;
    until("progress", || async {
        gateway.get(&path).await.json()["status"] == "in_progress"
    })
    .await;
    let state = gateway.get(&path).await.json();
    assert_eq!(state["outputs"][0]["status"], "queued");
    let second = &state["outputs"][1];
    assert_eq!(
        (&second["stage"], &second["step"], &second["steps"]),
        (&json!("denoise"), &json!(2), &json!(4))
    );

    for output in &job.outputs {
        deployment
            .bus
            .put_result(&result(&job, output.index, None))
            .await
            .unwrap();
    }
    delivery.lease.ack().await;
    until("the end", || async {
        gateway.get(&path).await.json()["status"] == "completed"
    })
    .await;
    let state = gateway.get(&path).await.json();
    assert_eq!(state["response"]["data"][1]["seed"], 6);
    assert_eq!(
        state["response"]["data"][1]["url"],
        format!("{}/v1/images/{id}-1/content", gateway.url)
    );

    let elsewhere = told_elsewhere(&deployment, &id).await;
    assert_eq!(elsewhere["usage"], state["response"]["usage"]);
    gateway.stop().await;
}

/// The job's answer from a gateway that never saw it, having fetched a picture there too.
async fn told_elsewhere(deployment: &Deployment, id: &str) -> Value {
    let other = deployment.ready_gateway(&[]).await;
    let picture = other.get(&format!("/v1/images/{id}-0/content")).await;
    assert_eq!(picture.status, 200);
    let state = other.get(&format!("/v1/images/jobs/{id}")).await.json();
    other.stop().await;
    state["response"].clone()
}

#[tokio::test]
async fn a_job_past_its_deadline_ends_once_with_a_typed_error() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--job-timeout-s=1"]).await;
    let mut queue = deployment.ar_queue().await;
    let start = Instant::now();
    let body = json!({ "prompt": "p", "n": 2 });
    let (reply, (job, delivery)) = tokio::join!(gateway.generate(&body), next_job(&mut queue));
    assert_eq!(
        (reply.status.as_u16(), reply.error_code().as_str()),
        (504, "deadline_exceeded")
    );
    assert!(
        (1.0..3.0).contains(&start.elapsed().as_secs_f64()),
        "{:?}",
        start.elapsed()
    );
    let id = reply.headers["x-request-id"].to_str().unwrap().to_owned();
    assert_eq!(
        deployment.stored(&deployment.topology.results.name).await,
        2
    );

    // A worker that is late finds the place taken.
    for output in &job.outputs {
        let late = result(&job, output.index, None);
        let fence = deployment.bus.put_result(&late).await.unwrap();
        assert_eq!(fence, messaging::Fence::Taken);
    }
    delivery.lease.ack().await;
    let late = gateway.get(&format!("/v1/images/{id}-0/content")).await;
    assert_eq!(
        (late.status.as_u16(), late.error_code().as_str()),
        (504, "deadline_exceeded")
    );
    let state = gateway.get(&format!("/v1/images/jobs/{id}")).await.json();
    assert_eq!(
        (&state["status"], &state["error"]["code"]),
        (&json!("expired"), &json!("deadline_exceeded"))
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_deadline_is_kept_for_a_job_that_nobody_waits_for() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--job-timeout-s=0.5"]).await;
    let accepted = generate_in_background(&gateway, &json!({ "prompt": "p" })).await;
    assert_eq!(accepted.status, 202);
    until("the stored error", || async {
        deployment.stored(&deployment.topology.results.name).await == 1
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_job_whose_gateway_is_gone_is_ended_by_who_asks_after_its_deadline() {
    let deployment = Deployment::start().await;
    let first = deployment.ready_gateway(&["--job-timeout-s=60"]).await;
    let mut queue = deployment.ar_queue().await;
    generate_in_background(&first, &json!({ "prompt": "p", "n": 2 })).await;
    let (job, _delivery) = next_job(&mut queue).await;
    first.stop().await;
    // Its deadline as it will be, without the wait.
    let mut job = job;
    job.job = protocol::JobId::generate();
    (job.accepted_at, job.deadline_at) = (unix_millis() - 2_000, unix_millis() - 1_000);
    let record = JobRecord {
        job: job.job,
        outputs: job.outputs.clone(),
        size: job.size,
        format: job.format,
        denoise: job.denoise,
        accepted_at: job.accepted_at,
        deadline_at: job.deadline_at,
        tenant: None,
        trace_id: None,
    };
    deployment.bus.create_job(&record).await.unwrap();
    deployment
        .bus
        .put_result(&result(&job, job.outputs[0].index, None))
        .await
        .unwrap();

    let other = deployment.ready_gateway(&[]).await;
    let state = other
        .get(&format!("/v1/images/jobs/{}", job.job))
        .await
        .json();
    assert_eq!(
        (&state["status"], &state["error"]["code"]),
        (&json!("expired"), &json!("deadline_exceeded"))
    );
    assert_eq!(state["outputs"][0]["status"], "completed");
    assert_eq!(
        state["outputs"][0]["url"],
        format!("{}/v1/images/{}-0/content", other.url, job.job)
    );
    let ended: OutputResult = deployment
        .bus
        .result(job.job.output(job.outputs[1].index))
        .await
        .unwrap()
        .unwrap();
    assert!(ended.outcome.is_err());
    other.stop().await;
}

#[tokio::test]
async fn a_result_that_comes_at_the_deadline_is_the_answer() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--job-timeout-s=2"]).await;
    let mut queue = deployment.ar_queue().await;
    let body = json!({ "prompt": "p" });
    let work = async {
        let (job, delivery) = next_job(&mut queue).await;
        let left = job.deadline_at.saturating_sub(unix_millis() + 30);
        tokio::time::sleep(Duration::from_millis(left)).await;
        let fence = deployment
            .bus
            .put_result(&result(&job, job.outputs[0].index, None))
            .await
            .unwrap();
        delivery.lease.ack().await;
        fence
    };
    let (reply, fence) = tokio::join!(gateway.generate(&body), work);
    // Whoever won at the fence, the client hears of the same result.
    let wanted = if fence == messaging::Fence::First {
        200
    } else {
        504
    };
    assert_eq!(reply.status.as_u16(), wanted);
    gateway.stop().await;
}
