//! `fresco up` and `fresco generate`, as the README has them.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use integration::{
    binary,
    fleet::{until, until_up},
    http,
    process::Process,
    root, tiny_model,
};
use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;

/// What `fresco up` promises.
const STOPS_WITHIN: Duration = Duration::from_secs(5);

struct Up {
    process: Process,
    url: String,
    folder: TempDir,
}

impl Up {
    async fn start() -> Self {
        Self::start_in(TempDir::with_prefix("fresco-up-").unwrap()).await
    }

    async fn start_in(folder: TempDir) -> Self {
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (data, url_file) = (path("data"), path("url"));
        drop(fs::remove_file(&url_file));
        let model = tiny_model();
        let server = root().join(".fresco/bin/nats-server");
        let flags = [
            "up",
            "--model",
            model.to_str().unwrap(),
            "--data",
            &data,
            "--listen",
            "127.0.0.1:0",
            "--url-file",
            &url_file,
            "--nats-server",
            server.to_str().unwrap(),
        ];
        let mut process = Process::start(&binary("fresco"), "up", &flags, folder.path());
        let url = until_up(&mut process, &url_file).await;
        Self {
            process,
            url,
            folder,
        }
    }

    /// The processes of this fleet, by their command lines: they all name the data folder or are children of ours.
    fn processes(&self) -> Vec<(i32, String)> {
        processes_naming(self.folder.path(), self.process.id())
    }
}

fn processes_naming(folder: &Path, up: u32) -> Vec<(i32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(id) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<i32>().ok())
        else {
            continue;
        };
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let status = fs::read_to_string(entry.path().join("status")).unwrap_or_default();
        let child = status.lines().any(|line| line == format!("PPid:\t{up}"));
        if child || command.contains(folder.to_str().unwrap()) {
            found.push((id, command));
        }
    }
    found
}

fn runs(command: &str, program: &str) -> bool {
    command
        .split(' ')
        .next()
        .is_some_and(|path| path.ends_with(program))
}

#[tokio::test]
async fn generate_writes_the_pictures_and_tells_seed_and_times_a77() {
    let up = Up::start().await;
    let out = up.folder.path().join("pictures");
    let output = Command::new(binary("fresco"))
        .args([
            "generate",
            "a red fox",
            "--size",
            "128x128",
            "-n",
            "2",
            "--seed",
            "7",
            "--steps",
            "4",
        ])
        .args(["--gateway", &up.url, "--out", out.to_str().unwrap()])
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{told}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut files: Vec<_> = fs::read_dir(&out)
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    assert_eq!(files.len(), 2, "{files:?}");
    for (file, seed) in files.iter().zip(["7", "8"]) {
        assert!(
            fs::read(file).unwrap().starts_with(b"\x89PNG\r\n\x1a\n"),
            "{}",
            file.display()
        );
        let name = file.file_name().unwrap().to_str().unwrap();
        let line = told
            .lines()
            .find(|line| line.contains(name))
            .unwrap_or_else(|| panic!("{name} is not in:\n{told}"));
        assert!(line.contains(seed), "{line}");
    }

    // A refused request is the gateway's own words and a failure.
    let refused = Command::new(binary("fresco"))
        .args([
            "generate",
            "a <|image|>",
            "--gateway",
            &up.url,
            "--out",
            out.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("prompt"));
}

#[tokio::test]
async fn a_child_that_dies_is_started_again() {
    let up = Up::start().await;
    for program in [
        "fresco-denoiser",
        "fresco-ar-batcher",
        "fresco-gateway",
        "nats-server",
    ] {
        let running = || {
            up.processes()
                .into_iter()
                .filter(|(_, command)| runs(command, program))
                .collect::<Vec<_>>()
        };
        let before = running();
        let (id, _) = before
            .first()
            .unwrap_or_else(|| panic!("no {program} among {:?}", up.processes()));
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(*id), Signal::SIGKILL).unwrap();
        until(&format!("{program} runs again"), || {
            let again = running();
            let replaced = again.len() == before.len() && again.iter().all(|(now, _)| now != id);
            async move { replaced.then_some(()) }
        })
        .await;
        let picture = until("a picture comes after the loss", || async {
            let request =
                json!({"prompt": "p", "size": "64x64", "seed": 1, "num_inference_steps": 1});
            let url = format!("{}/readyz", up.url);
            let (ready, _) = http::text(&url).await?;
            if !ready.is_success() {
                return None;
            }
            Some(http::generate(&up.url, &request).await)
        });
        assert_eq!(picture.await.data().len(), 1, "after {program} died");
    }
}

#[tokio::test]
async fn a_stop_leaves_no_process_and_loses_no_job() {
    let mut up = Up::start().await;
    let (gateway, data) = (up.url.clone(), up.folder);
    // Accepted and left alone: its client does not wait.
    let request =
        json!({"prompt": "a red fox", "size": "128x128", "seed": 7, "num_inference_steps": 400});
    let accepted = reqwest::Client::new()
        .post(format!("{gateway}/v1/images/generations"))
        .header("prefer", "respond-async")
        .json(&request)
        .send()
        .await
        .unwrap();
    assert_eq!(accepted.status(), 202);
    let job: serde_json::Value = serde_json::from_slice(&accepted.bytes().await.unwrap()).unwrap();
    let job = job["id"].as_str().unwrap().to_owned();
    until("it is painted", || async {
        let job = http::get(&format!("{gateway}/v1/images/jobs/{job}")).await;
        (job.body["status"] == "in_progress").then_some(())
    })
    .await;

    let (asked, id) = (Instant::now(), up.process.id());
    let status = up.process.terminate(STOPS_WITHIN).await;
    assert!(
        status.success(),
        "{status} after {:?}\n{}",
        asked.elapsed(),
        up.process.log()
    );
    assert_eq!(processes_naming(data.path(), id), [], "left over");

    let again = Up::start_in(data).await;
    let job = until("the job is done", || async {
        let job = http::get(&format!("{}/v1/images/jobs/{job}", again.url)).await;
        (job.body["status"] != "in_progress" && job.body["status"] != "queued").then_some(job)
    });
    let job = job.await;
    assert_eq!(job.body["status"], "completed", "{}", job.body);
}

#[tokio::test]
async fn a_bad_model_is_told_and_ends_it() {
    let folder = TempDir::with_prefix("fresco-up-").unwrap();
    fs::create_dir(folder.path().join("model")).unwrap();
    let model = folder.path().join("model");
    let server = root().join(".fresco/bin/nats-server");
    let data = folder.path().join("data");
    let flags = [
        "up",
        "--model",
        model.to_str().unwrap(),
        "--data",
        data.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
        "--nats-server",
        server.to_str().unwrap(),
    ];
    let mut up = Process::start(&binary("fresco"), "up", &flags, folder.path());
    let status = up.end(Duration::from_secs(30)).await;
    assert_eq!(status.code(), Some(2), "{}", up.log());
    assert!(up.log().contains("model_index.json"), "{}", up.log());
    assert_eq!(processes_naming(folder.path(), up.id()), [], "left over");
}
