//! A look into a worker's engine: operators and memory, and the picture none the wiser.

use std::process::{Output, Stdio};

use integration::{
    binary,
    fleet::{Fleet, Size},
    http,
};
use protocol::{Role, WorkerPresence};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

const KEY: &str = "an-admin-key-of-the-tests";

/// A file with the key, in a folder that goes with the first.
fn key_file() -> (TempDir, String) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("admin.key");
    std::fs::write(&file, KEY).unwrap();
    (folder, file.to_str().unwrap().to_owned())
}

fn fox() -> Value {
    json!({"prompt": "a red fox", "size": "64x64", "seed": 7, "num_inference_steps": 4})
}

async fn worker(fleet: &Fleet, role: Role) -> WorkerPresence {
    let workers = fleet.bus.workers().await.unwrap();
    workers
        .into_iter()
        .find(|worker| worker.role == role)
        .unwrap()
}

/// `fresco profile` with these arguments besides where the broker is.
fn profile(fleet: &Fleet, key: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("fresco"));
    command
        .arg("profile")
        .args(fleet.broker.flags(Role::Operator))
        .args(["--admin-key-file", key])
        .args(arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asks `worker` for its next steps, and paints until it has answered: what it reports, and the pictures.
async fn profiled(fleet: &Fleet, key: &str, worker: &WorkerPresence) -> (Value, Vec<Vec<u8>>) {
    let name = worker.worker.to_string();
    let mut asking = profile(fleet, key, &[&name, "--steps", "2", "--json"])
        .spawn()
        .unwrap();
    let mut pictures = Vec::new();
    while asking.try_wait().unwrap().is_none() {
        let answer = http::generate(&fleet.gateway, &fox()).await;
        pictures.extend(http::pictures(&answer).await);
    }
    let output = asking.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{}", said(&output));
    (serde_json::from_slice(&output.stdout).unwrap(), pictures)
}

/// Two steps of libtorch that fit into the time they took.
#[track_caller]
fn assert_is_of_libtorch(profile: &Value) {
    let report = &profile["report"];
    assert_eq!(report["steps"], 2, "{profile}");
    let operators = report["operators"].as_array().unwrap();
    let number = |value: &Value| value.as_u64().unwrap();
    let own: u64 = operators
        .iter()
        .map(|operator| number(&operator["self_ns"]))
        .sum();
    let wall = number(&report["wall_ns"]);
    assert!(own > 0 && own <= wall, "{own} of {wall}");
    for operator in operators {
        let [calls, own, total] = ["calls", "self_ns", "total_ns"].map(|f| number(&operator[f]));
        assert!(calls > 0 && own <= total, "{operator}");
    }
    let calls = |name: &str| {
        let named = operators.iter().find(|operator| operator["name"] == name);
        named.map_or(0, |operator| number(&operator["calls"]))
    };
    assert!(calls("aten::addmm") + calls("aten::mm") > 2, "{profile}");
}

/// The gauges of a worker, by their stages.
async fn memory(worker: &WorkerPresence) -> Vec<(String, f64)> {
    let url = format!("http://{}/metrics", worker.health_address.unwrap());
    let (_, text) = http::text(&url).await.unwrap();
    let series = text
        .lines()
        .filter_map(|line| line.strip_prefix("fresco_libtorch_memory_"));
    let mut series: Vec<_> = series
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        })
        .collect();
    series.sort_by(|a, b| a.0.cmp(&b.0));
    series
}

#[tokio::test]
async fn a_profiled_step_shows_its_operators_and_paints_the_same_picture() {
    let (_folder, key) = key_file();
    let one = Size {
        denoisers: 1,
        shell_flags: vec!["--admin-key-file".to_owned(), key.clone()],
        ..Size::default()
    };
    let fleet = Fleet::start(one).await;
    let plain = http::generate(&fleet.gateway, &fox()).await;
    let plain = http::pictures(&plain).await.remove(0);
    for (role, stages) in [
        (Role::Denoiser, &["denoise", "prepare", "vae_decode"][..]),
        (Role::ArBatcher, &["decode", "prefill"]),
    ] {
        let worker = worker(&fleet, role).await;
        let (report, pictures) = profiled(&fleet, &key, &worker).await;
        let same = pictures.iter().all(|picture| *picture == plain);
        assert!(same && !pictures.is_empty(), "recording changes nothing");
        assert_is_of_libtorch(&report);
        let memory = memory(&worker).await;
        let wanted: Vec<_> = ["bytes", "peak_bytes"]
            .into_iter()
            .flat_map(|name| {
                stages
                    .iter()
                    .map(move |stage| format!("{name}{{stage=\"{stage}\"}}"))
            })
            .collect();
        let names: Vec<_> = memory.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(names, wanted);
        let (live, peak) = memory.split_at(stages.len());
        for ((name, live), (_, peak)) in live.iter().zip(peak) {
            // The weights of the tiny checkpoint's half.
            assert!(
                *live > 100_000.0 && peak >= live,
                "{name}: {live} of {peak}"
            );
        }
    }
    let again = http::generate(&fleet.gateway, &fox()).await;
    assert_eq!(http::pictures(&again).await, [plain]);
}

#[tokio::test]
async fn what_cannot_be_profiled_says_why() {
    let (_folder, key) = key_file();
    let mut fleet = Fleet::quick(&["--admin-key-file", &key]).await;
    let denoiser = worker(&fleet, Role::Denoiser).await;
    let [denoiser_name, gateway] = [denoiser.clone(), worker(&fleet, Role::Gateway).await]
        .map(|worker| worker.worker.to_string());
    let refused = async |fleet: &Fleet, name: &str| {
        let output = profile(fleet, &key, &[name, "--wait-s", "1"])
            .output()
            .await
            .unwrap();
        assert!(!output.status.success());
        said(&output)
    };
    for (name, reason) in [
        (&*denoiser_name, "no engine that runs on libtorch"),
        (&gateway, "is a gateway"),
        ("denoiser-of-nobody", "shows signs of life"),
    ] {
        let said = refused(&fleet, name).await;
        assert!(said.contains(reason), "{name}: {said}");
    }
    assert_eq!(memory(&denoiser).await, []);
    fleet.denoisers[0].kill();
    let said = refused(&fleet, &denoiser_name).await;
    assert!(said.contains("cannot be asked"), "{said}");

    let route = format!(
        "http://{}/profile",
        worker(&fleet, Role::ArBatcher)
            .await
            .health_address
            .unwrap()
    );
    for (query, status) in [
        ("steps=17&wait_s=1", StatusCode::BAD_REQUEST),
        ("steps=1&wait_s=601", StatusCode::BAD_REQUEST),
        ("steps=1", StatusCode::BAD_REQUEST),
        ("steps=1&wait_s=1&shape=1", StatusCode::BAD_REQUEST),
        ("steps=1&wait_s=1", StatusCode::NOT_IMPLEMENTED),
    ] {
        let answer = Client::new()
            .post(format!("{route}?{query}"))
            .bearer_auth(KEY)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), status, "{query}");
    }
    let url = format!("{route}?steps=1&wait_s=1");
    let stranger = Client::new().post(url).send().await.unwrap();
    assert_eq!(stranger.status(), StatusCode::UNAUTHORIZED);
    assert_eq!(stranger.headers()["www-authenticate"], "Bearer");
}
