//! Requests that start from the prior tokens of an earlier picture, and priorities.

use protocol::{PriorId, PriorTokens, PriorUsage, PriorityClass, StoredPrior, Subject};
use serde_json::{Value, json};
use service::clock::unix_millis;

use crate::{
    deployment::{Deployment, next_job, result, work_once},
    idempotency::{KEY, claim_only, is_replayed, protocol_job},
};

/// Of a picture of 64 x 32.
fn prior() -> StoredPrior {
    StoredPrior {
        id: PriorId::from_u128(0xab),
        tokens: PriorTokens::new(1, 2, vec![1, 2]).unwrap(),
        usage: PriorUsage {
            prompt_tokens: 3,
            generated_tokens: 3,
            cached: false,
        },
    }
}

fn body() -> Value {
    json!({ "prompt": "a red cube", "n": 2, "prior_id": prior().id })
}

/// A deployment that has these tokens.
async fn with_prior() -> Deployment {
    let deployment = Deployment::start().await;
    deployment.bus.put_prior(&prior()).await.unwrap();
    deployment
}

async fn forget_priors(deployment: &Deployment) {
    let bucket = format!("KV_{}", deployment.topology.priors.name);
    deployment.empty(&bucket).await;
}

#[tokio::test]
async fn a_variation_takes_its_tokens_along_and_tells_their_name() {
    let deployment = with_prior().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let work = async {
        let (job, delivery) = next_job(&mut queue).await;
        for output in &job.outputs {
            let mut result = result(&job, output.index, None);
            result.prior_id = Some(prior().id);
            deployment.bus.put_result(&result).await.unwrap();
        }
        delivery.lease.ack().await;
        job
    };
    let body = body();
    let (reply, job) = tokio::join!(gateway.generate(&body), work);
    assert_eq!(job.prior, Some(prior()));
    assert_eq!(job.size.to_string(), "64x32");
    let answer = reply.json();
    assert_eq!(
        (reply.status.as_u16(), &answer["size"]),
        (200, &json!("64x32"))
    );
    let state = gateway.job(job.job).await;
    for images in [
        &answer["data"],
        &state["response"]["data"],
        &state["outputs"],
    ] {
        assert_eq!(images[1]["prior_id"], json!(prior().id), "{images}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn a_variation_of_what_is_not_there_is_refused_and_nothing_is_published() {
    let deployment = with_prior().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let unknown = PriorId::from_u128(0xac).to_string();
    let known = prior().id.to_string();
    let cases = [
        (json!({"prior_id": unknown}), 404, "not_found", "prior_id"),
        (
            json!({"prior_id": known[1..]}),
            400,
            "invalid_parameter",
            "prior_id",
        ),
        (
            json!({"prior_id": known.to_uppercase()}),
            400,
            "invalid_parameter",
            "prior_id",
        ),
        (
            json!({"prior_id": known, "size": "32x64"}),
            400,
            "invalid_parameter",
            "size",
        ),
        (
            json!({"priority": "urgent"}),
            400,
            "invalid_parameter",
            "priority",
        ),
    ];
    for (mut body, status, code, param) in cases {
        body["prompt"] = json!("p");
        for headers in [&[][..], &[KEY]] {
            let reply = gateway.generate_with(&body, headers).await;
            let refusal = (reply.status.as_u16(), reply.error_code());
            assert_eq!(refusal, (status, code.to_owned()), "{body}");
            assert_eq!(reply.json()["error"]["param"], param, "{body}");
        }
    }
    let keys = format!("KV_{}", deployment.topology.idempotency.name);
    assert_eq!(deployment.accepted().await, (0, 0));
    assert_eq!(deployment.stored(&keys).await, 0);
    gateway.stop().await;
}

#[tokio::test]
async fn a_variation_that_was_begun_is_queued_with_its_tokens_by_who_asks_again() {
    let deployment = with_prior().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let body = body();
    let record = claim_only(&deployment, &gateway, &body, unix_millis()).await;
    let mut queue = deployment.ar_queue().await;
    let (reply, job) = tokio::join!(
        gateway.generate_with(&body, &[KEY]),
        work_once(&deployment, &mut queue, &[])
    );
    assert_eq!((reply.status.as_u16(), is_replayed(&reply)), (200, true));
    assert_eq!((job.job, job.prior), (record.job, Some(prior())));
    gateway.stop().await;
}

#[tokio::test]
async fn a_variation_that_was_begun_and_not_queued_is_refused_once_its_tokens_are_gone() {
    let deployment = with_prior().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let body = body();
    let record = claim_only(&deployment, &gateway, &body, unix_millis()).await;
    forget_priors(&deployment).await;
    let reply = gateway.generate_with(&body, &[KEY]).await;
    assert_eq!(
        (reply.status.as_u16(), reply.error_code().as_str()),
        (404, "not_found")
    );
    assert_eq!(reply.json()["error"]["param"], "prior_id");
    assert_eq!(deployment.queued(record.job).await, 0);
    // The answer names the job that it did not become.
    let metrics = gateway.metrics().await;
    let refused = "fresco_rejections_total{reason=\"not_found\"} 1\n";
    assert!(metrics.contains(refused), "{metrics}");
    gateway.stop().await;
}

#[tokio::test]
async fn a_variation_that_was_queued_is_joined_although_its_tokens_are_gone() {
    let deployment = with_prior().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let body = body();
    let record = claim_only(&deployment, &gateway, &body, unix_millis()).await;
    let mut message = protocol_job(&record);
    message.prior = Some(prior());
    let class = PriorityClass::Standard;
    deployment
        .bus
        .publish_ar_job(class, None, &message)
        .await
        .unwrap();
    forget_priors(&deployment).await;
    let mut queue = deployment.ar_queue().await;
    let (reply, job) = tokio::join!(
        gateway.generate_with(&body, &[KEY]),
        work_once(&deployment, &mut queue, &[])
    );
    assert_eq!((reply.status.as_u16(), is_replayed(&reply)), (200, true));
    assert_eq!((job.job, job.prior), (record.job, Some(prior())));
    gateway.stop().await;
}

#[tokio::test]
async fn a_request_waits_in_the_queue_of_its_priority() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let in_background = ("prefer", "respond-async");
    for (priority, class) in [
        (json!("high"), PriorityClass::High),
        (json!("standard"), PriorityClass::Standard),
        (json!(null), PriorityClass::Standard),
        (json!("low"), PriorityClass::Low),
    ] {
        let body = json!({ "prompt": "a red cube", "priority": priority });
        let reply = gateway.generate_with(&body, &[in_background]).await;
        assert_eq!(reply.status, 202);
        let mut queue = deployment.ar_queue_of(class).await;
        let (job, delivery) = next_job(&mut queue).await;
        assert_eq!(reply.json()["id"], json!(job.job));
        assert_eq!(delivery.subject, Subject::Ar(class, job.job));
        delivery.lease.ack().await;
    }
    gateway.stop().await;
}
