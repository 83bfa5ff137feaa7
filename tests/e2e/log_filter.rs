//! What each role logs is changed while it runs, by who has the key.

use std::{fs, net::SocketAddr};

use integration::{
    fleet::{Fleet, until},
    http,
};
use protocol::Role;
use reqwest::{Client, Method, StatusCode};
use serde_json::json;
use tempfile::TempDir;

const KEY: &str = "a-key-of-the-operators-0123456789";

/// A fleet whose processes have the key.
async fn fleet(folder: &TempDir) -> Fleet {
    let file = folder.path().join("admin.key");
    fs::write(&file, format!("{KEY}\n")).unwrap();
    let flags = ["--admin-key-file", file.to_str().unwrap(), "--log", "info"];
    Fleet::quick(&flags).await
}

/// Where each of the fleet's processes answers probes, by role.
async fn probes(fleet: &Fleet) -> Vec<(Role, SocketAddr)> {
    until("all three roles show themselves", || async {
        let workers = fleet.bus.workers().await.ok()?;
        let probes = workers
            .iter()
            .filter_map(|worker| Some((worker.role, worker.health_address?)));
        let probes: Vec<_> = probes.collect();
        (probes.len() == 3).then_some(probes)
    })
    .await
}

/// `/logfilter` of a process, under a key or none.
async fn asked(
    base: &str,
    method: Method,
    key: Option<&str>,
    body: impl Into<reqwest::Body>,
) -> (StatusCode, String) {
    let request = Client::new().request(method, format!("{base}/logfilter"));
    let request = match key {
        Some(key) => request.bearer_auth(key),
        None => request,
    };
    let response = request.body(body).send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

/// What a process of this role has logged.
fn log(fleet: &Fleet, role: Role) -> String {
    match role {
        Role::Gateway => fleet.gateway_process.log(),
        Role::ArBatcher => fleet.ar_batcher.log(),
        Role::Denoiser | Role::Operator => fleet.denoisers[0].log(),
    }
}

async fn paint(fleet: &Fleet) {
    let request = json!({"prompt": "a red fox", "size": "64x64", "num_inference_steps": 2});
    let answer = http::generate(&fleet.gateway, &request).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
    fleet.until_queues_empty().await;
}

#[tokio::test]
async fn every_role_logs_more_when_the_operator_says_so_and_less_again() {
    let folder = TempDir::new().unwrap();
    let fleet = fleet(&folder).await;
    let probes = probes(&fleet).await;
    let set = async |text: &'static str| {
        for (_, address) in &probes {
            let base = format!("http://{address}");
            let (status, told) = asked(&base, Method::PUT, Some(KEY), text).await;
            assert_eq!(status, StatusCode::OK, "{told}");
            let wanted = if text.is_empty() { "info" } else { text };
            assert_eq!(told, format!("{wanted}\n"));
            let shown = asked(&base, Method::GET, Some(KEY), "").await;
            assert_eq!(shown, (StatusCode::OK, told));
        }
    };
    let debug_lines = |role, from: usize| {
        let log = log(&fleet, role);
        log[from..].matches(" DEBUG ").count()
    };
    let ends = || {
        [Role::Gateway, Role::ArBatcher, Role::Denoiser].map(|role| (role, log(&fleet, role).len()))
    };

    paint(&fleet).await;
    for (role, _) in ends() {
        assert_eq!(debug_lines(role, 0), 0, "{role} by itself");
    }
    set("info,gateway=debug,ar_batcher=debug,denoiser=debug").await;
    paint(&fleet).await;
    for (role, _) in ends() {
        until("debug lines are written", || async {
            (debug_lines(role, 0) > 0).then_some(())
        })
        .await;
    }
    set("").await;
    let before = ends();
    paint(&fleet).await;
    for (role, from) in before {
        assert_eq!(debug_lines(role, from), 0, "{role} after all");
        assert!(!log(&fleet, role).contains(KEY), "{role}");
    }
}

#[tokio::test]
async fn nobody_else_changes_what_is_logged() {
    let folder = TempDir::new().unwrap();
    let fleet = fleet(&folder).await;
    for (role, address) in probes(&fleet).await {
        let base = format!("http://{address}");
        for key in [None, Some("a-key-of-the-operators-012345678X"), Some("a")] {
            for method in [Method::GET, Method::PUT, Method::DELETE] {
                let (status, _) = asked(&base, method, key, "debug").await;
                assert_eq!(status, StatusCode::UNAUTHORIZED, "{role} {key:?}");
            }
        }
        let refusals = [
            (
                Method::DELETE,
                "".to_owned(),
                StatusCode::METHOD_NOT_ALLOWED,
                "GET or PUT",
            ),
            (
                Method::PUT,
                "info,gateway=loud".to_owned(),
                StatusCode::BAD_REQUEST,
                "`gateway=loud`",
            ),
            (
                Method::PUT,
                "a=debug,".repeat(1_000),
                StatusCode::PAYLOAD_TOO_LARGE,
                "4096",
            ),
        ];
        for (method, body, status, text) in refusals {
            let (is, said) = asked(&base, method, Some(KEY), body).await;
            assert!(is == status && said.contains(text), "{role}: {is} {said}");
        }
        let (_, now) = asked(&base, Method::GET, Some(KEY), "").await;
        assert_eq!(now, "info\n", "{role}");
    }
    let public = asked(&fleet.gateway, Method::GET, Some(KEY), "").await;
    assert_eq!(public.0, StatusCode::NOT_FOUND, "the API has no such page");

    let (process, _api) = fleet.start_gateway("without-a-key", &[]).await;
    let address = until("it shows itself", || async {
        let workers = fleet.bus.workers().await.ok()?;
        let it = workers.iter().find(|worker| worker.process == process.id());
        it?.health_address
    })
    .await;
    for method in [Method::GET, Method::PUT] {
        let (status, _) = asked(&format!("http://{address}"), method, Some(KEY), "").await;
        assert_eq!(status, StatusCode::NOT_FOUND, "without the flag");
    }
}
