//! Who is there.

use protocol::{CurrentWork, JobId, OutputIndex, Role, WorkerState};
use serde_json::{Value, json};

use crate::{
    deployment::{Deployment, TestGateway, next_job, until},
    jobs::generate_in_background,
};

async fn of_role(gateway: &TestGateway, role: &str) -> Vec<Value> {
    let list = gateway.get("/v1/workers").await.json();
    let data = list["data"].as_array().unwrap();
    let of_role = data.iter().filter(|worker| worker["role"] == role);
    of_role.cloned().collect()
}

#[tokio::test]
async fn workers_and_queues_are_told_and_no_ack_subject_a24() {
    let mut deployment = Deployment::start().await;
    deployment.join(Role::Denoiser);
    let gateway = deployment.ready_gateway(&[]).await;
    let output = JobId::generate().output(OutputIndex::new(3).unwrap());
    deployment.change_last(|worker| {
        worker.state = WorkerState::Busy;
        worker.held = vec![CurrentWork {
            output,
            ack_subject: "$JS.ACK.secret".to_owned(),
            since: 1_500,
        }];
    });
    until("the busy denoiser", || async {
        let denoisers = of_role(&gateway, "denoiser").await;
        denoisers.iter().any(|worker| worker["state"] == "busy")
    })
    .await;
    let reply = gateway.get("/v1/workers").await;
    assert!(!String::from_utf8_lossy(&reply.bytes).contains("secret"));
    let list = reply.json();
    assert_eq!(list["object"], "list");
    let idle = json!({ "queued": 0, "held": 0, "idle": 0 });
    assert_eq!(list["queues"], json!({ "ar": idle, "denoise": idle }));
    let denoisers = of_role(&gateway, "denoiser").await;
    let busy = denoisers
        .iter()
        .find(|worker| worker["state"] == "busy")
        .unwrap();
    let mut wanted = json!({
        "role": "denoiser", "state": "busy", "reason": null, "host": "here", "process": 1, "device": "cpu",
        "model_revision": null, "health_address": null, "held": [{ "output": output, "since": 1.5 }],
        "outputs_open": 0,
    });
    wanted["id"] = busy["id"].clone();
    assert_eq!(busy, &wanted);
    assert_eq!(
        (denoisers.len(), of_role(&gateway, "ar-batcher").await.len()),
        (2, 1)
    );
    gateway.stop().await;
}

#[tokio::test]
async fn gateways_show_what_is_open_and_go_out_of_sight() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--grace-s=2"]).await;
    let other = deployment.ready_gateway(&[]).await;
    let shown = || async {
        let gateways = of_role(&other, "gateway").await;
        let mut shown: Vec<_> = gateways
            .iter()
            .map(|worker| {
                assert!(worker["health_address"].is_string() && worker["host"].is_string());
                let state = worker["state"].as_str().unwrap().to_owned();
                (state, worker["outputs_open"].as_u64().unwrap())
            })
            .collect();
        shown.sort();
        shown
    };
    let idle = ("idle".to_owned(), 0);
    until("both gateways", || async {
        shown().await == [idle.clone(), idle.clone()]
    })
    .await;
    generate_in_background(&gateway, &json!({ "prompt": "p", "n": 3 })).await;
    let mut queue = deployment.ar_queue().await;
    let _held = next_job(&mut queue).await;
    let busy = ("busy".to_owned(), 3);
    until("the open outputs", || async {
        shown().await == [busy.clone(), idle.clone()]
    })
    .await;
    gateway.stop().await;
    until("one gateway", || async {
        shown().await == std::slice::from_ref(&idle)
    })
    .await;
    other.stop().await;
}
