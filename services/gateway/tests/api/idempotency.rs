//! Requests under an idempotency key.

use futures::future::join_all;
use protocol::{IdempotencyKey, IdempotencyRecord, JobRecord, LifeEvent, UnixMillis};
use serde_json::{Value, json};
use service::clock::unix_millis;

use crate::deployment::{Deployment, Reply, TestGateway, next_job, result, until, work_once};

pub(crate) const KEY: (&str, &str) = ("idempotency-key", "order 66/a");

fn body() -> Value {
    json!({ "prompt": "a red cube", "n": 2 })
}

pub(crate) fn is_replayed(reply: &Reply) -> bool {
    reply
        .headers
        .get("idempotency-replayed")
        .is_some_and(|value| value == "true")
}

/// What has to be equal in the answers of two gateways: all but the addresses.
fn essence(reply: &Reply) -> Value {
    let mut answer = reply.json();
    for image in answer["data"].as_array_mut().unwrap() {
        image.as_object_mut().unwrap().remove("url");
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_at_once_over_two_gateways_are_one_execution_and_equal_answers() {
    let deployment = Deployment::start().await;
    let gateways = [
        deployment.ready_gateway(&[]).await,
        deployment.ready_gateway(&[]).await,
    ];
    let mut queue = deployment.ar_queue().await;
    let body = body();
    let requests = (0..50).map(|i| gateways[i % 2].generate_with(&body, &[KEY]));
    let (replies, job) = tokio::join!(join_all(requests), work_once(&deployment, &mut queue, &[]));
    let first = essence(&replies[0]);
    assert_eq!(first["id"], json!(job.job));
    for reply in &replies {
        assert_eq!(reply.status, 200);
        assert_eq!(essence(reply), first);
    }
    let new = replies.iter().filter(|reply| !is_replayed(reply)).count();
    assert_eq!(new, 1);
    // One request in all, one record, two pictures.
    assert_eq!(deployment.accepted().await, (0, 1));
    let results = &deployment.topology.results.name;
    assert_eq!(deployment.stored(results).await, 2);
    let mut joins = 0;
    for gateway in &gateways {
        let metrics = gateway.metrics().await;
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("fresco_idempotent_joins_total "));
        joins += line.unwrap().parse::<u64>().unwrap();
    }
    assert_eq!(joins, 49);
    for gateway in gateways {
        gateway.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_request_many_times_needs_room_for_one() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--queue-outputs-max=2"]).await;
    let mut queue = deployment.ar_queue().await;
    let body = body();
    let requests = (0..50).map(|_| gateway.generate_with(&body, &[KEY]));
    let (replies, job) = tokio::join!(join_all(requests), work_once(&deployment, &mut queue, &[]));
    for reply in &replies {
        assert_eq!(reply.status, 200);
        assert_eq!(reply.json()["id"], json!(job.job));
    }
    let metrics = gateway.metrics().await;
    assert!(
        metrics.contains("fresco_outputs_refused_total 0\n"),
        "{metrics}"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_finished_job_is_answered_from_what_is_stored_and_another_body_is_refused() {
    let deployment = Deployment::start().await;
    let first = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let body = body();
    let (reply, job) = tokio::join!(
        first.generate_with(&body, &[KEY]),
        work_once(&deployment, &mut queue, &[])
    );
    assert_eq!(reply.status, 200);
    first.stop().await;

    let other = deployment.ready_gateway(&[]).await;
    let again = other.generate_with(&body, &[KEY]).await;
    assert_eq!(
        (again.status.as_u16(), essence(&again)),
        (200, essence(&reply))
    );
    assert!(is_replayed(&again) && !is_replayed(&reply));
    let background = other
        .generate_with(&body, &[KEY, ("prefer", "respond-async")])
        .await;
    assert_eq!(background.status, 202);
    assert!(is_replayed(&background));
    assert_eq!(
        (&background.json()["id"], &background.json()["status"]),
        (&json!(job.job), &json!("completed"))
    );
    let reused = other
        .generate_with(&json!({ "prompt": "a blue cube", "n": 2 }), &[KEY])
        .await;
    assert_eq!(
        (reused.status.as_u16(), reused.error_code().as_str()),
        (422, "idempotency_key_reused")
    );
    assert_eq!(deployment.accepted().await, (0, 1));
    other.stop().await;
}

#[tokio::test]
async fn a_failed_job_stays_failed_under_its_key() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let body = body();
    let (reply, _) = tokio::join!(
        gateway.generate_with(&body, &[KEY]),
        work_once(&deployment, &mut queue, &[1])
    );
    let again = gateway.generate_with(&body, &[KEY]).await;
    for reply in [&reply, &again] {
        assert_eq!(
            (reply.status.as_u16(), reply.error_code().as_str()),
            (500, "denoise_failed")
        );
    }
    assert!(is_replayed(&again) && !is_replayed(&reply));
    gateway.stop().await;
}

/// A record as a gateway writes it that dies right after its claim.
pub(crate) async fn claim_only(
    deployment: &Deployment,
    gateway: &TestGateway,
    body: &Value,
    accepted_at: UnixMillis,
) -> JobRecord {
    // The digest is the gateway's own: taken from a claim that it wrote under another key.
    let other_key = [("idempotency-key", "other")];
    let mut queue = deployment.ar_queue().await;
    let (reply, _) = tokio::join!(
        gateway.generate_with(body, &other_key),
        work_once(deployment, &mut queue, &[])
    );
    assert_eq!(reply.status, 200);
    let key: IdempotencyKey = other_key[0].1.parse().unwrap();
    let written = deployment.bus.claimed(&key).await.unwrap().unwrap();
    let record = JobRecord {
        job: protocol::JobId::generate(),
        accepted_at,
        deadline_at: accepted_at + 60_000,
        tenant: None,
        trace_id: None,
        ..written.record
    };
    let claim = IdempotencyRecord {
        request_digest: written.request_digest,
        record: record.clone(),
    };
    let key: IdempotencyKey = KEY.1.parse().unwrap();
    let claimed = deployment.bus.claim_key(&key, &claim).await.unwrap();
    assert_eq!(claimed, messaging::Claim::New);
    record
}

#[tokio::test]
async fn a_job_whose_gateway_died_after_the_claim_is_queued_by_who_asks_again() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let record = claim_only(&deployment, &gateway, &body(), unix_millis()).await;
    let mut queue = deployment.ar_queue().await;
    let body = body();
    let requests = (0..5).map(|_| gateway.generate_with(&body, &[KEY]));
    let (replies, job) = tokio::join!(join_all(requests), work_once(&deployment, &mut queue, &[]));
    assert_eq!((job.job, &job.outputs), (record.job, &record.outputs));
    assert_eq!(job.deadline_at, record.deadline_at);
    for reply in &replies {
        assert_eq!((reply.status.as_u16(), is_replayed(reply)), (200, true));
        assert_eq!(reply.json()["id"], json!(record.job));
    }
    assert_eq!(deployment.accepted().await, (0, 2));
    gateway.stop().await;
}

#[tokio::test]
async fn a_claim_that_came_to_nothing_in_its_time_is_an_expired_job() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let record = claim_only(&deployment, &gateway, &body(), unix_millis() - 60_001).await;
    let reply = gateway.generate_with(&body(), &[KEY]).await;
    assert_eq!(
        (reply.status.as_u16(), reply.error_code().as_str()),
        (504, "deadline_exceeded")
    );
    assert!(is_replayed(&reply));
    assert_eq!(deployment.queued(record.job).await, 0);
    assert_eq!(gateway.job(record.job).await["status"], "expired");
    gateway.stop().await;
}

#[tokio::test]
async fn a_job_that_a_worker_has_touched_is_not_queued_again() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let record = claim_only(&deployment, &gateway, &body(), unix_millis()).await;
    // Its request is done and gone from the queue; one output waits for a denoiser.
    let output = record.job.output(record.outputs[1].index);
    let advanced = deployment
        .bus
        .advance(output, LifeEvent::PriorStored, unix_millis());
    advanced.await.unwrap().unwrap();
    let body = body();
    let work = async {
        until("the join", || async { deployment.accepted().await.1 == 2 }).await;
        // What could have been queued would have been by now: the pictures come one after the other.
        for output in &record.outputs {
            let mut job = protocol_job(&record);
            job.outputs.clone_from(&record.outputs);
            let result = result(&job, output.index, None);
            deployment.bus.put_result(&result).await.unwrap();
        }
    };
    let (reply, ()) = tokio::join!(gateway.generate_with(&body, &[KEY]), work);
    assert_eq!((reply.status.as_u16(), is_replayed(&reply)), (200, true));
    assert_eq!(deployment.queued(record.job).await, 0);
    gateway.stop().await;
}

pub(crate) fn protocol_job(record: &JobRecord) -> protocol::ArJob {
    protocol::ArJob {
        job: record.job,
        prompt: "a red cube".to_owned(),
        outputs: record.outputs.clone(),
        size: record.size,
        format: record.format,
        denoise: record.denoise,
        prior: None,
        accepted_at: record.accepted_at,
        deadline_at: record.deadline_at,
    }
}

#[tokio::test]
async fn a_client_whose_gateway_died_asks_another_one_with_its_key() {
    let deployment = Deployment::start().await;
    let first = deployment.ready_gateway(&["--grace-s=0.2"]).await;
    let other = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let body = body();
    let token = first.shutdown.token.clone();
    let stop = async {
        let (job, delivery) = next_job(&mut queue).await;
        token.cancel();
        (job, delivery)
    };
    let (url, running) = (first.url.clone(), first.running);
    let headers = [crate::deployment::JSON, KEY];
    let asked = crate::deployment::send(
        &url,
        reqwest::Method::POST,
        crate::deployment::GENERATIONS,
        &headers,
        body.to_string().into(),
    );
    let finish = async {
        token.cancelled().await;
        running.finish().await;
    };
    let (cut_off, (job, delivery), ()) = tokio::join!(asked, stop, finish);
    assert!(cut_off.is_err() || cut_off.unwrap().status == 503);
    let work = async {
        for output in &job.outputs {
            let result = result(&job, output.index, None);
            deployment.bus.put_result(&result).await.unwrap();
        }
        delivery.lease.ack().await;
    };
    let (reply, ()) = tokio::join!(other.generate_with(&body, &[KEY]), work);
    assert_eq!((reply.status.as_u16(), is_replayed(&reply)), (200, true));
    assert_eq!(reply.json()["id"], json!(job.job));
    other.stop().await;
}
