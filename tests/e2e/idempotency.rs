//! One key, one execution: over two gateways, and over the death of one.

use std::time::Duration;

use integration::{
    api::Api,
    fleet::{Engine, Fleet, Size},
    http,
};
use protocol::Role;
use replay::{ArTimes, DenoiseTimes, Table};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const TABLE: Table = Table {
    ar: ArTimes::new(&[(1, 51.0), (2, 52.0)], 261),
    denoise: DenoiseTimes {
        step_ms: 100.0,
        decode_ms: 2.0,
    },
};

fn request() -> Value {
    json!({"prompt": "a fox", "size": "64x64", "num_inference_steps": 8, "response_format": "b64_json"})
}

const KEY: (&str, &str) = ("idempotency-key", "order 66/a");

/// Rows started, pictures painted.
async fn executions(fleet: &Fleet) -> (u64, u64) {
    fleet.until_queues_empty().await;
    let rows = fleet.counter(Role::ArBatcher, "fresco_ar_rows_started");
    let painted = fleet.counter(Role::Denoiser, "fresco_outputs_painted");
    (rows.await, painted.await)
}

async fn fleet() -> Fleet {
    Fleet::start(Size {
        denoisers: 2,
        ack_wait: Duration::from_secs(3),
        engine: Engine::Replay(TABLE),
        ..Size::default()
    })
    .await
}

#[tokio::test]
async fn fifty_requests_of_one_key_at_two_gateways_are_one_picture() {
    let fleet = fleet().await;
    let (_second, other) = fleet.start_gateway("gateway-2", &[]).await;
    let first = Api::new(&fleet.gateway);
    let ask = |i: usize| {
        let api = if i.is_multiple_of(2) { &first } else { &other }.clone();
        async move { api.generate(&request(), &[KEY]).await.unwrap() }
    };
    let answers: JoinSet<_> = (0..50).map(ask).collect();
    let answers = answers.join_all().await;
    // The picture is in the answer, so that everything is compared.
    for answer in &answers {
        assert_eq!(answer.data().len(), 1);
        assert_eq!(answer.body, answers[0].body);
    }
    let replayed = |answer: &&http::Answer| answer.headers.contains_key("idempotency-replayed");
    assert_eq!(answers.iter().filter(replayed).count(), 49);
    assert_eq!(executions(&fleet).await, (1, 1));

    let mut another = request();
    another["prompt"] = json!("an owl");
    let refused = other.generate(&another, &[KEY]).await.unwrap();
    assert_eq!(
        (refused.status.as_u16(), refused.error().0),
        (422, "idempotency_key_reused")
    );
    assert_eq!(executions(&fleet).await, (1, 1));
}

#[tokio::test]
async fn a_client_whose_gateway_is_killed_finds_its_job_at_another_one_a30() {
    let mut fleet = fleet().await;
    let (_second, other) = fleet.start_gateway("gateway-2", &[]).await;
    let first = Api::new(&fleet.gateway);
    let mut in_background = request();
    in_background
        .as_object_mut()
        .unwrap()
        .remove("response_format");
    let job = first.submit(&in_background).await;
    let cut_off = JoinSet::from_iter([async move { first.generate(&request(), &[KEY]).await }]);
    other.until_state(&job, "denoise_running").await;
    fleet.until_painting().await;
    // Both outputs are with a denoiser, or on the way to one.
    fleet.gateway_process.kill();
    let broken = cut_off.join_all().await.remove(0);
    assert!(broken.is_err(), "{broken:?}");

    let request = request();
    let by_key = other.generate(&request, &[KEY]);
    let (by_key, by_id) = tokio::join!(by_key, other.until_ended(&job));
    let by_key = by_key.unwrap();
    assert_eq!(by_key.data().len(), 1);
    assert_eq!(by_key.headers["idempotency-replayed"], "true");
    assert_ne!(by_key.id(), job);
    assert_eq!(by_id["status"], "completed");
    assert_eq!(executions(&fleet).await, (2, 2));
    // No trace of a second try in either life.
    let jobs = [other.job(&job).await, other.job(&by_key.id()).await];
    for job in jobs {
        assert_eq!(job["outputs"][0]["attempts"].as_array().unwrap().len(), 2);
    }
}
