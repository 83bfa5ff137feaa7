//! Clients that are told apart: who brings no key is refused, and what is another's is not there.

use protocol::{CurrentWork, JobId, OutputIndex, Role, WorkerState};
use reqwest::Method;
use serde_json::{Value, json};
use service::clock::unix_millis;
use tempfile::TempDir;

use crate::deployment::{
    Deployment, GENERATIONS, JSON, Reply, TestGateway, next_job, until, work_once,
};

/// Keys whose SHA-256 is in [`FILE`], and one that is in nobody's.
const STUDIO: (&str, &str) = ("authorization", "Bearer sk-studio");
const PRESS: (&str, &str) = ("authorization", "bearer sk-press");
const NOBODY: (&str, &str) = ("authorization", "Bearer sk-nobody");
const IN_BACKGROUND: (&str, &str) = ("prefer", "respond-async");
const FILE: &str = r#"
[[tenant]]
name = "studio"
key_sha256 = "d44337f571881d1b64786d8843d8286d8c75ccf098c6e4eddc64dd9982978bec"
[[tenant]]
name = "press"
key_sha256 = "76c9286280bdda1160bb8b70e407ea5ae2a39d59f94949b867238cc84f26c5d7"
"#;

async fn gateway(deployment: &Deployment, folder: &TempDir) -> TestGateway {
    let file = folder.path().join("tenants.toml");
    std::fs::write(&file, FILE).unwrap();
    let flags = ["--tenants", file.to_str().unwrap()];
    deployment.ready_gateway(&flags).await
}

/// A job in the background.
async fn ask(gateway: &TestGateway, body: &Value, more: &[(&str, &str)]) -> Reply {
    let headers = [&[JSON, IN_BACKGROUND], more].concat();
    let body = body.to_string().into();
    gateway
        .send(Method::POST, GENERATIONS, &headers, body)
        .await
}

/// A method and a path, with a key or none.
async fn call(gateway: &TestGateway, route: &(Method, String), key: &[(&str, &str)]) -> Reply {
    let (method, path) = route;
    let body = match *method {
        Method::POST => br#"{"prompt":"p"}"#.to_vec(),
        _ => Vec::new(),
    };
    let headers = [&[JSON], key].concat();
    gateway.send(method.clone(), path, &headers, body).await
}

/// What is of one job.
fn routes(job: JobId) -> [(Method, String); 4] {
    let (path, content) = (
        format!("/v1/images/jobs/{job}"),
        format!("/v1/images/{job}-0/content"),
    );
    [
        (Method::GET, path.clone()),
        (Method::GET, content.clone()),
        (Method::HEAD, content),
        (Method::DELETE, path),
    ]
}

#[tokio::test]
async fn a_request_without_a_tenants_key_is_told_nothing_and_queues_nothing() {
    let (deployment, folder) = (Deployment::start().await, TempDir::new().unwrap());
    let gateway = gateway(&deployment, &folder).await;
    let mut queue = deployment.ar_queue().await;
    let accepted = ask(&gateway, &json!({"prompt": "p"}), &[STUDIO]).await;
    assert_eq!(accepted.status, 202);
    let job = work_once(&deployment, &mut queue, &[]).await.job;
    let before = deployment.accepted().await;

    let mut all = routes(job).to_vec();
    all.push((Method::POST, GENERATIONS.to_owned()));
    all.push((Method::GET, "/v1/workers".to_owned()));
    for route in &all {
        for key in [&[][..], &[NOBODY], &[("authorization", "sk-studio")]] {
            let reply = call(&gateway, route, key).await;
            assert_eq!(reply.status, 401, "{route:?} {key:?}");
            assert_eq!(reply.headers["www-authenticate"], "Bearer");
            if route.0 != Method::HEAD {
                assert_eq!(reply.error_code(), "invalid_api_key", "{route:?}");
                assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
            }
        }
    }
    assert_eq!(deployment.accepted().await, before);
    for open in ["/livez", "/readyz"] {
        assert_eq!(gateway.get(open).await.status, 200, "{open}");
    }
    let metrics = gateway.metrics().await;
    for line in [
        "fresco_tenant_rejections_total{tenant=\"none\"} 3\n",
        "fresco_tenant_rejections_total{tenant=\"press\"} 0\n",
        "fresco_rejections_total{reason=\"invalid_api_key\"} 3\n",
        "fresco_tenant_jobs_total{tenant=\"studio\",outcome=\"done\"} 1\n",
        "fresco_tenant_images_total{tenant=\"studio\"} 1\n",
        "fresco_tenant_queue_wait_seconds_count{tenant=\"studio\"} 1\n",
        "fresco_tenant_outputs_open{tenant=\"studio\"} 0.0\n",
    ] {
        assert!(metrics.contains(line), "no {line} in\n{metrics}");
    }
}

#[tokio::test]
async fn what_is_another_tenants_is_not_there() {
    let (deployment, folder) = (Deployment::start().await, TempDir::new().unwrap());
    let gateway = gateway(&deployment, &folder).await;
    let second = self::gateway(&deployment, &folder).await;
    let mut queue = deployment.ar_queue().await;
    let accepted = ask(&gateway, &json!({"prompt": "p"}), &[STUDIO]).await;
    let open: JobId = accepted.json()["id"].as_str().unwrap().parse().unwrap();
    // While it is open where it was accepted, where it is known from the broker, and when it has ended.
    for gateway in [&gateway, &second] {
        for route in &routes(open) {
            let reply = call(gateway, route, &[PRESS]).await;
            assert_eq!(reply.status, 404, "{route:?}");
        }
    }
    let job = work_once(&deployment, &mut queue, &[]).await.job;
    assert_eq!(job, open);
    for gateway in [&gateway, &second] {
        for route in &routes(job) {
            assert_eq!(
                call(gateway, route, &[PRESS]).await.status,
                404,
                "{route:?}"
            );
            assert_eq!(
                call(gateway, route, &[STUDIO]).await.status,
                200,
                "{route:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_tenant_sees_its_own_outputs_at_work_and_that_workers_are_busy_with_others() {
    let (mut deployment, folder) = (Deployment::start().await, TempDir::new().unwrap());
    deployment.join(Role::Denoiser);
    let gateway = gateway(&deployment, &folder).await;
    let second = self::gateway(&deployment, &folder).await;
    let mut queue = deployment.ar_queue().await;
    let accepted = ask(&gateway, &json!({"prompt": "p"}), &[STUDIO]).await;
    assert_eq!(accepted.status, 202);
    let held = next_job(&mut queue).await;
    let id: JobId = accepted.json()["id"].as_str().unwrap().parse().unwrap();
    let first = OutputIndex::new(0).unwrap();
    let [own, nobodys] = [id, JobId::generate()].map(|job| job.output(first));
    deployment.change_last(|worker| {
        worker.state = WorkerState::Busy;
        worker.held = [own, nobodys]
            .map(|output| CurrentWork {
                output,
                ack_subject: "$JS.ACK.secret".to_owned(),
                since: 1_500,
            })
            .into();
    });
    let route = (Method::GET, "/v1/workers".to_owned());
    let busy = async |gateway: &TestGateway, key| {
        let list = call(gateway, &route, &[key]).await.json();
        let workers = list["data"].as_array().unwrap().clone();
        let mut busy = workers.into_iter().filter(|worker| {
            (&worker["role"], &worker["state"]) == (&json!("denoiser"), &json!("busy"))
        });
        busy.next()
    };
    for gateway in [&gateway, &second] {
        until("the busy denoiser", || async {
            busy(gateway, PRESS).await.is_some()
        })
        .await;
        for (key, shown) in [(STUDIO, json!(own)), (PRESS, Value::Null)] {
            let worker = busy(gateway, key).await.unwrap();
            let wanted = json!([{"output": shown, "since": 1.5}, {"output": null, "since": 1.5}]);
            assert_eq!(worker["held"], wanted, "{key:?}");
        }
    }
    drop(held);
}

#[tokio::test]
async fn a_key_of_idempotency_is_its_tenants_own() {
    let (deployment, folder) = (Deployment::start().await, TempDir::new().unwrap());
    let gateway = gateway(&deployment, &folder).await;
    let order = ("idempotency-key", "order 66/a");
    let id = |reply: &Reply| reply.json()["id"].as_str().unwrap().to_owned();
    let studio = ask(&gateway, &json!({"prompt": "p"}), &[STUDIO, order]).await;
    let press = ask(&gateway, &json!({"prompt": "q"}), &[PRESS, order]).await;
    assert_eq!((studio.status.as_u16(), press.status.as_u16()), (202, 202));
    assert_ne!(id(&studio), id(&press));
    let again = ask(&gateway, &json!({"prompt": "p"}), &[STUDIO, order]).await;
    assert_eq!(id(&again), id(&studio));
    let other = ask(&gateway, &json!({"prompt": "p"}), &[PRESS, order]).await;
    assert_eq!(
        (other.status.as_u16(), other.error_code().as_str()),
        (422, "idempotency_key_reused")
    );
}

#[tokio::test]
async fn a_job_of_before_there_were_tenants_is_nobodys_and_seen_without_them() {
    let (deployment, folder) = (Deployment::start().await, TempDir::new().unwrap());
    let plain = deployment.ready_gateway(&[]).await;
    let accepted = ask(&plain, &json!({"prompt": "p"}), &[]).await;
    let id: JobId = accepted.json()["id"].as_str().unwrap().parse().unwrap();
    let mut record = deployment.bus.job(id).await.unwrap().unwrap();
    assert!(record.tenant.is_none() && record.deadline_at > unix_millis());
    // As a gateway of yesterday wrote it.
    record.job = JobId::generate();
    record.trace_id = None;
    deployment.bus.create_job(&record).await.unwrap();
    let route = &routes(record.job)[0];
    let told = call(&plain, route, &[]).await;
    assert_eq!(
        (told.status.as_u16(), &told.json()["trace_id"]),
        (200, &Value::Null)
    );
    let gateway = gateway(&deployment, &folder).await;
    assert_eq!(call(&gateway, route, &[STUDIO]).await.status, 404);
}
