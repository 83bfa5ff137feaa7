//! Readiness, lost brokers and ordered ends.

use std::time::Instant;

use protocol::{Role, WorkerState};
use reqwest::Method;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::deployment::{Deployment, GENERATIONS, JSON, next_job, result, send, until, work_once};

async fn reason(gateway: &crate::deployment::TestGateway) -> String {
    let reply = gateway.get("/readyz").await;
    if reply.status == 200 {
        return "ready".to_owned();
    }
    assert_eq!(
        (reply.status.as_u16(), reply.error_code().as_str()),
        (503, "not_ready")
    );
    reply.json()["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[tokio::test]
async fn readiness_tells_what_is_missing_and_a_job_without_it_is_refused_at_once_a07() {
    let mut deployment = Deployment::bare().await;
    let gateway = deployment.gateway(&[]).await;
    assert_eq!(gateway.get("/livez").await.status, 200);
    until("the missing stream", || async {
        reason(&gateway).await.contains("missing")
    })
    .await;
    deployment
        .bus
        .provision(&deployment.topology)
        .await
        .unwrap();
    until("the missing batcher", || async {
        reason(&gateway).await == "no ar-batcher is ready"
    })
    .await;
    deployment.join(Role::ArBatcher);
    until("the missing denoiser", || async {
        reason(&gateway).await == "no denoiser is ready"
    })
    .await;

    let start = Instant::now();
    let refused = gateway.generate(&json!({ "prompt": "p" })).await;
    assert_eq!(
        (refused.status.as_u16(), refused.error_code().as_str()),
        (503, "not_ready")
    );
    assert!(refused.headers.contains_key("retry-after") && start.elapsed().as_secs() < 5);
    assert_eq!(deployment.accepted().await, (0, 0));

    deployment.join(Role::Denoiser);
    until("readiness", || async { reason(&gateway).await == "ready" }).await;
    deployment
        .delete_stream(&deployment.topology.denoise.name)
        .await;
    until("the lost stream", || async {
        reason(&gateway).await.contains("missing")
    })
    .await;
    gateway.stop().await;
}

#[tokio::test]
async fn without_its_broker_the_gateway_lives_and_refuses_and_recovers() {
    let mut deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let away = async {
        until("the lost broker", || async {
            reason(&gateway).await != "ready"
        })
        .await;
        assert_eq!(gateway.get("/livez").await.status, 200);
        gateway.generate(&json!({ "prompt": "p" })).await
    };
    let refused = deployment.restart_broker(away).await;
    assert_eq!(
        (refused.status.as_u16(), refused.error_code().as_str()),
        (503, "bus_unavailable")
    );
    assert!(refused.headers.contains_key("retry-after"));
    until("recovery", || async { reason(&gateway).await == "ready" }).await;
    gateway.stop().await;
}

#[tokio::test]
async fn a_request_in_flight_is_answered_before_the_gateway_ends() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--grace-s=15"]).await;
    let mut queue = deployment.ar_queue().await;
    let (url, token) = (gateway.url.clone(), gateway.shutdown.token.clone());
    let probes = format!("http://{}", gateway.running.probes);
    let work = async {
        let (job, delivery) = next_job(&mut queue).await;
        token.cancel();
        // The listener closes: nobody new comes in.
        until("the closed door", || async {
            send(&url, Method::GET, "/livez", &[], vec![])
                .await
                .is_err()
        })
        .await;
        // Whoever looks after it sees that it lives, and why it takes nothing.
        let probe = async |path| send(&probes, Method::GET, path, &[], vec![]).await.unwrap();
        assert_eq!(probe("/livez").await.status, 200);
        until("the reason", || async {
            String::from_utf8(probe("/readyz").await.bytes).unwrap() == "the gateway is stopping\n"
        })
        .await;
        deployment
            .bus
            .put_result(&result(&job, job.outputs[0].index, None))
            .await
            .unwrap();
        delivery.lease.ack().await;
    };
    let request = send(
        &gateway.url,
        Method::POST,
        GENERATIONS,
        &[JSON],
        br#"{"prompt":"p"}"#.to_vec(),
    );
    let (reply, (), ()) = tokio::join!(request, work, gateway.running.finish());
    assert_eq!(reply.unwrap().status, 200);
}

#[tokio::test]
async fn a_request_that_was_on_its_way_when_the_gateway_stops_is_served() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--grace-s=15"]).await;
    let mut queue = deployment.ar_queue().await;
    let token = gateway.shutdown.token.clone();
    let body = br#"{"prompt":"p"}"#;
    let head = format!(
        "POST {GENERATIONS} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    );
    let address = gateway.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let ask = async {
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut goes_on = [0; 25];
        stream.read_exact(&mut goes_on).await.unwrap();
        assert_eq!(&goes_on, b"HTTP/1.1 100 Continue\r\n\r\n");
        token.cancel();
        until("the news", || async {
            let workers = deployment.bus.workers().await.unwrap();
            let stops = |state| state == WorkerState::Draining;
            workers.iter().any(|worker| stops(worker.state))
        })
        .await;
        stream.write_all(body).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let serve = async {
        let (answer, ()) = tokio::join!(ask, async {
            work_once(&deployment, &mut queue, &[]).await;
        });
        answer
    };
    let finish = async {
        token.cancelled().await;
        gateway.running.finish().await;
    };
    let (answer, ()) = tokio::join!(serve, finish);
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[tokio::test]
async fn a_request_that_outlasts_the_grace_period_is_told_that_its_job_goes_on() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&["--grace-s=1"]).await;
    let mut queue = deployment.ar_queue().await;
    let token = gateway.shutdown.token.clone();
    let stop = async {
        let (job, _delivery) = next_job(&mut queue).await;
        token.cancel();
        job
    };
    let request = send(
        &gateway.url,
        Method::POST,
        GENERATIONS,
        &[JSON],
        br#"{"prompt":"p"}"#.to_vec(),
    );
    let finish = async {
        token.cancelled().await;
        let start = Instant::now();
        gateway.running.finish().await;
        start.elapsed()
    };
    let (reply, job, took) = tokio::join!(request, stop, finish);
    let reply = reply.unwrap();
    assert_eq!(
        (reply.status.as_u16(), reply.error_code().as_str()),
        (503, "not_ready")
    );
    assert_eq!(reply.headers["x-request-id"], job.job.to_string());
    assert!(took.as_secs_f64() < 2.5, "{took:?}");
}

#[tokio::test]
async fn a_full_queue_is_told_with_when_to_come_back() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    deployment.fill_ar_stream().await;
    let refused = gateway.generate(&json!({ "prompt": "p" })).await;
    assert_eq!(
        (refused.status.as_u16(), refused.error_code().as_str()),
        (429, "queue_full")
    );
    assert!(refused.headers.contains_key("retry-after"));
    gateway.stop().await;
}
