//! Room for outputs, over HTTP.

use std::time::{Duration, Instant};

use protocol::JobId;
use serde_json::{Value, json};

use crate::{
    deployment::{Deployment, Reply, TestGateway, next_job, result, until, work_once},
    jobs::generate_in_background,
};

async fn ask(gateway: &TestGateway, outputs: u8) -> Reply {
    generate_in_background(gateway, &json!({ "prompt": "p", "n": outputs })).await
}

/// Seconds until a refused client should come back.
fn told(reply: &Reply) -> u64 {
    assert_eq!(
        (reply.status.as_u16(), reply.error_code().as_str()),
        (429, "queue_full")
    );
    assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
    reply.headers["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn room_is_counted_in_outputs_over_all_gateways_a72() {
    let deployment = Deployment::start().await;
    let flags = ["--queue-outputs-max=5"];
    let gateway = deployment.ready_gateway(&flags).await;
    let other = deployment.ready_gateway(&flags).await;
    assert_eq!(ask(&gateway, 4).await.status, 202);
    assert!((1..=600).contains(&told(&ask(&gateway, 2).await)));
    until("the news", || async {
        let reply = other.get("/v1/workers").await.json();
        let workers = reply["data"].as_array().unwrap();
        workers.iter().any(|worker| worker["outputs_open"] == 4)
    })
    .await;
    // Seen by the next look of the other gateway.
    until("the refusal there", || async {
        let reply = ask(&other, 2).await;
        if reply.status == 202 {
            let id = reply.json()["id"].as_str().unwrap().to_owned();
            other.cancel(id.parse::<JobId>().unwrap()).await;
        }
        reply.status == 429
    })
    .await;
    // A refused request leaves nothing behind.
    let refused = ask(&gateway, 3).await;
    assert!(!refused.headers.contains_key("x-request-id"));
    let mut queue = deployment.ar_queue().await;
    while work_once(&deployment, &mut queue, &[]).await.outputs.len() != 4 {}
    until("room", || async { ask(&gateway, 5).await.status == 202 }).await;
    let metrics = gateway.metrics().await;
    assert!(
        metrics.contains("fresco_outputs_accepted_total 9\n"),
        "{metrics}"
    );
    gateway.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_replay_needs_no_room() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--queue-outputs-max=1"]).await;
    let mut queue = deployment.ar_queue().await;
    let (key, body) = ([("idempotency-key", "k")], json!({ "prompt": "p" }));
    let (reply, _) = tokio::join!(
        gateway.generate_with(&body, &key),
        work_once(&deployment, &mut queue, &[])
    );
    assert_eq!(reply.status, 200);
    until("room", || async { ask(&gateway, 1).await.status == 202 }).await;
    told(&ask(&gateway, 1).await);
    let again = gateway.generate_with(&body, &key).await;
    assert_eq!(
        (again.status.as_u16(), again.json()["id"].clone()),
        (200, reply.json()["id"].clone())
    );
    told(
        &gateway
            .generate_with(&body, &[("idempotency-key", "l")])
            .await,
    );
    gateway.stop().await;
}

/// A gateway that admission does not hold back, in front of a queue that is full.
async fn before_a_full_queue(deployment: &Deployment) -> TestGateway {
    let flags = ["--queue-outputs-max=4294967295"];
    let gateway = deployment.ready_gateway(&flags).await;
    deployment.fill_ar_stream().await;
    gateway
}

/// Too long for what [`Deployment::fill_ar_stream`] leaves.
fn long_request() -> Value {
    json!({ "prompt": "p".repeat(3_000) })
}

#[tokio::test]
async fn a_request_that_found_its_queue_full_leaves_no_record() {
    let deployment = Deployment::start().await;
    let gateway = before_a_full_queue(&deployment).await;
    for _ in 0..2 {
        told(&gateway.generate(&long_request()).await);
        let (_, records) = deployment.accepted().await;
        assert_eq!(records, 0);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_keyed_request_that_found_its_queue_full_goes_on_when_asked_again() {
    let deployment = Deployment::start().await;
    let gateway = before_a_full_queue(&deployment).await;
    let other = deployment.ready_gateway(&[]).await;
    let (key, body) = (("idempotency-key", "k"), long_request());
    told(&gateway.generate_with(&body, &[key]).await);
    let claim = || async { deployment.bus.claimed(&"k".parse().unwrap()).await };
    let claimed = claim().await.unwrap().expect("the claim stays");
    // Nobody knows which of the gateways is the one that queues it: none takes away what another may be using.
    for gateway in [&other, &gateway] {
        told(&gateway.generate_with(&body, &[key]).await);
        assert_eq!(claim().await.unwrap().as_ref(), Some(&claimed));
        let record = deployment.bus.job(claimed.record.job).await.unwrap();
        assert_eq!(record.as_ref(), Some(&claimed.record));
        let job = gateway.job(claimed.record.job).await;
        assert_eq!(job["status"], "queued");
    }
    deployment.empty(&deployment.topology.ar.name).await;
    let mut queue = deployment.ar_queue().await;
    let headers = [key, ("prefer", "respond-async")];
    let (reply, (job, _)) =
        tokio::join!(other.generate_with(&body, &headers), next_job(&mut queue));
    assert_eq!(reply.status, 202);
    assert_eq!(reply.headers["idempotency-replayed"], "true");
    assert_eq!(job.job, claimed.record.job);
    assert_eq!(reply.json()["id"], json!(job.job));
    gateway.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_keyed_request_that_never_found_room_is_an_expired_job() {
    let deployment = Deployment::start().await;
    let gateway = before_a_full_queue(&deployment).await;
    let (key, mut body) = (("idempotency-key", "k"), long_request());
    body["timeout_s"] = json!(1);
    told(&gateway.generate_with(&body, &[key]).await);
    let claimed = deployment.bus.claimed(&"k".parse().unwrap()).await.unwrap();
    let job = claimed.expect("the claim stays").record.job;
    until("the deadline", || async {
        gateway.job(job).await["status"] == "expired"
    })
    .await;
    let again = gateway.generate_with(&body, &[key]).await;
    assert_eq!(
        (again.status.as_u16(), again.error_code().as_str()),
        (504, "deadline_exceeded")
    );
    gateway.stop().await;
}

#[tokio::test]
async fn results_that_fill_their_stream_keep_new_jobs_out() {
    let deployment = Deployment::with_results_max(20_000_000).await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    assert_eq!(ask(&gateway, 4).await.status, 202);
    let (job, delivery) = next_job(&mut queue).await;
    // 17 of 20 MB: there is room for errors.
    for output in &job.outputs {
        let mut result = result(&job, output.index, None);
        result.outcome.as_mut().unwrap().bytes = vec![7; 4_250_000];
        deployment.bus.put_result(&result).await.unwrap();
    }
    delivery.lease.ack().await;
    until("the look", || async {
        gateway.get("/readyz").await.status == 503
    })
    .await;
    let reason = gateway.get("/readyz").await.json()["error"]["message"].clone();
    assert!(reason.as_str().unwrap().contains("results"), "{reason}");
    let (key, body) = (("idempotency-key", "k"), json!({ "prompt": "p" }));
    for headers in [&[][..], &[key]] {
        let refused = gateway.generate_with(&body, headers).await;
        assert_eq!(told(&refused), 60);
    }
    let claim = deployment.bus.claimed(&"k".parse().unwrap()).await.unwrap();
    assert_eq!(claim, None);
    // What is there can be had, and goes when it is old.
    let path = format!("/v1/images/{}-0/content", job.job);
    assert_eq!(gateway.get(&path).await.status, 200);
    deployment.empty(&deployment.topology.results.name).await;
    until("room", || async { ask(&gateway, 1).await.status == 202 }).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_measured_rate_tells_when_to_come_back() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--queue-outputs-max=10"]).await;
    let mut queue = deployment.ar_queue().await;
    for _ in 0..10 {
        assert_eq!(ask(&gateway, 1).await.status, 202);
    }
    // Always at its limit, a picture each 200 ms or as fast as this machine can; nobody asks in vain.
    let mut ticks = tokio::time::interval(Duration::from_millis(200));
    let start = Instant::now();
    for ended in 1..=25 {
        ticks.tick().await;
        work_once(&deployment, &mut queue, &[]).await;
        let line = format!("fresco_outputs_ended_total {ended}\n");
        until("the end", || async {
            gateway.metrics().await.contains(&line)
        })
        .await;
        assert_eq!(ask(&gateway, 1).await.status, 202);
    }
    let each_s = start.elapsed().as_secs_f64() / 25.0;
    let (mut told_s, mut error) = (Vec::new(), 0.0);
    for k in 1..=20_u8 {
        let told = told(&ask(&gateway, 1).await);
        // Less than a second cannot be told.
        let wanted = (f64::from(k) * each_s).max(1.0);
        error += (told as f64 - wanted).abs() / wanted / 20.0;
        told_s.push(told);
    }
    assert!(error <= 0.3, "{told_s:?} at one each {each_s} s: {error}");
    gateway.stop().await;
}
