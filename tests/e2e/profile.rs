//! A look into a worker's engine: operators and memory, and the picture none the wiser.

use std::process::{Output, Stdio};

use integration::{
    binary,
    fleet::{Fleet, Size, until},
    http,
};
use messaging::Presence;
use protocol::{Role, WorkerPresence};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

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
    let mut command = fresco(fleet, "profile");
    command.args(["--admin-key-file", key]).args(arguments);
    command
}

/// A command of the operator.
fn fresco(fleet: &Fleet, name: &str) -> Command {
    let mut command = Command::new(binary("fresco"));
    command
        .arg(name)
        .args(fleet.broker.flags(Role::Operator))
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
    let asking = profile(fleet, key, &[&name, "--steps", "2", "--json"]);
    let (output, pictures) = while_painting(fleet, asking).await;
    (serde_json::from_slice(&output.stdout).unwrap(), pictures)
}

/// Paints until `asking` has its answer.
async fn while_painting(fleet: &Fleet, mut asking: Command) -> (Output, Vec<Vec<u8>>) {
    let mut asking = asking.spawn().unwrap();
    let mut pictures = Vec::new();
    while asking.try_wait().unwrap().is_none() {
        let answer = http::generate(&fleet.gateway, &fox()).await;
        pictures.extend(http::pictures(&answer).await);
    }
    let output = asking.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{}", said(&output));
    (output, pictures)
}

/// Reads what a person gets, by the commands and variables of the page: of a worker that says it is on another machine, to
/// which the key goes only when that is named.
async fn is_shown_to_a_person(fleet: &Fleet, key: &str, worker: WorkerPresence) {
    let elsewhere = WorkerPresence {
        worker: "denoiser-elsewhere".parse().unwrap(),
        host: "elsewhere".to_owned(),
        ..worker
    };
    let (tracker, gone) = (TaskTracker::new(), CancellationToken::new());
    let _presence = Presence::start(&fleet.bus, elsewhere, &tracker, gone.clone());
    until("`fresco workers` shows it", || async {
        let mut command = fresco(fleet, "workers");
        let output = command.output().await.unwrap();
        let shown = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut names = shown.lines().map(|line| line.split(' ').next());
        let is_there = names.any(|name| name == Some("denoiser-elsewhere"));
        is_there.then_some(())
    })
    .await;
    let asking = || {
        let mut command = fresco(fleet, "profile");
        command.args(["denoiser-elsewhere", "--steps", "2"]);
        command.env("FRESCO_ADMIN_KEY_FILE", key);
        command
    };
    let refused = asking().output().await.unwrap();
    let told = said(&refused);
    assert!(told.contains("--worker-host 127.0.0.1"), "{told}");
    let mut named = asking();
    named.env("FRESCO_WORKER_HOSTS", "10.0.0.5,127.0.0.1");
    let (output, _) = while_painting(fleet, named).await;
    let shown = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[0].starts_with("OPERATOR "), "{shown}");
    assert!(shown.contains("\naten::"), "{shown}");
    let sum = lines.last().unwrap();
    assert!(sum.starts_with("2 steps on cpu: operators "), "{shown}");
    gone.cancel();
    tracker.close();
    tracker.wait().await;
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
    let denoiser = worker(&fleet, Role::Denoiser).await;
    is_shown_to_a_person(&fleet, &key, denoiser).await;
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
