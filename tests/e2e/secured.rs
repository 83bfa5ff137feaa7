//! Three brokers as `infra/nats/cluster` has them, with TLS and a credential a role: a whole deployment works on them, and
//! goes on when a worker and a broker die.

use std::{fs, path::Path, process::Command, time::Duration};

use futures::future::join_all;
use integration::{
    binary,
    broker::Broker,
    fleet::{until, until_up},
    http,
    process::Process,
    root,
    secured::Secrets,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Site {
    secrets: Secrets,
    nodes: Vec<Broker>,
    folder: TempDir,
}

impl Site {
    fn start() -> Self {
        let secrets = Secrets::make();
        Self {
            nodes: secrets.cluster(),
            secrets,
            folder: TempDir::with_prefix("fresco-e2e-").unwrap(),
        }
    }

    fn urls(&self) -> String {
        let urls: Vec<_> = self.nodes.iter().map(Broker::url).collect();
        urls.join(",")
    }

    fn file(&self, name: &str) -> String {
        let path = self.secrets.folder().join(name);
        path.to_str().unwrap().to_owned()
    }

    /// What every process is started with.
    fn access(&self, role: &str) -> Vec<String> {
        let credentials = self.file(&format!("{role}.nk"));
        let flags = [
            ["--nats-url", &self.urls()],
            ["--nats-credentials", &credentials],
            ["--nats-ca", &self.file("ca.pem")],
        ];
        flags
            .as_flattened()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    /// `fresco nats …` as the operator: whether it succeeded, and what it said.
    fn nats(&self, command: &str, flags: &[&str]) -> (bool, String) {
        let output = Command::new(binary("fresco"))
            .args(["nats", command])
            .args(self.access("operator"))
            .args(flags)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.success(), said.concat())
    }

    fn process(&self, program: &str, name: &str, role: &str, flags: &[&str]) -> Process {
        let access = self.access(role);
        let leading: &[&str] = if program == "fresco" { &["watch"] } else { &[] };
        let access: Vec<_> = access.iter().map(String::as_str).collect();
        let flags = [leading, &access, flags].concat();
        Process::start(&binary(program), name, &flags, self.folder.path())
    }

    /// What the brokers have told, to their last word, of somebody who did what it may not.
    fn last_violations(&mut self) -> Vec<String> {
        self.nodes.iter_mut().for_each(Broker::kill);
        self.nodes
            .iter()
            .flat_map(Broker::last_violations)
            .collect()
    }
}

/// The drain of a file that names none, and what an ordered stop takes besides.
const STOPS_WITHIN: Duration = Duration::from_secs(70);

const REPLICAS: [&str; 4] = ["--replicas", "3", "--ack-wait-s", "5"];

fn request(seed: u64) -> Value {
    json!({"prompt": "a red fox", "size": "64x64", "seed": seed, "n": 2, "num_inference_steps": 20})
}

fn address(file: &Path) -> Option<String> {
    fs::read_to_string(file)
        .ok()
        .filter(|address| !address.is_empty())
}

#[test]
fn a_command_with_the_key_of_another_role_names_the_one_that_it_needs() {
    let secrets = Secrets::make();
    let broker = secrets.single();
    let file = |name: &str| secrets.folder().join(name);
    for (command, key, needed) in [
        ("nats change", "operator", "admin.nk"),
        ("nats check", "admin", "operator.nk"),
        ("nats init", "gateway", "operator.nk"),
        ("workers", "watcher", "operator.nk"),
    ] {
        let output = Command::new(binary("fresco"))
            .args(command.split(' '))
            .args(["--nats-url", &broker.url()])
            .arg("--nats-credentials")
            .arg(file(&format!("{key}.nk")))
            .arg("--nats-ca")
            .arg(file("ca.pem"))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{command}: {said}");
        assert!(said.contains(needed), "{command}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deployment_works_on_a_cluster_with_tls_and_a_credential_a_role() {
    let mut site = Site::start();
    until("the cluster takes the streams", || async {
        let (made, _) = site.nats("init", &REPLICAS);
        made.then_some(())
    })
    .await;
    let (good, said) = site.nats("check", &REPLICAS);
    assert!(good, "{said}");

    let times = root().join("infra/times/ascend.json");
    let replay = [
        "--engine",
        "replay",
        "--time-scale",
        "0.05",
        "--times",
        times.to_str().unwrap(),
    ];
    let listen_file = site.folder.path().join("address");
    let listen = [
        "--listen",
        "127.0.0.1:0",
        "--listen-file",
        listen_file.to_str().unwrap(),
    ];
    let gateway = site.process("fresco-gateway", "gateway", "gateway", &listen);
    let system = site.file("system.nk");
    let urls = site.urls();
    let mut watch = vec!["--system-url", &urls, "--system-credentials", &system];
    watch.extend(REPLICAS);
    let watcher = site.process("fresco", "watch", "watcher", &watch);
    let batcher = site.process("fresco-ar-batcher", "ar-batcher", "ar-batcher", &replay);
    let denoiser = |name: &str| site.process("fresco-denoiser", name, "denoiser", &replay);
    let mut denoisers = [denoiser("denoiser-0"), denoiser("denoiser-1")];
    let at = until("the gateway listens", || async { address(&listen_file) }).await;
    let url = format!("http://{at}");
    until("the gateway is ready", || async {
        let (status, _) = http::text(&format!("{url}/readyz")).await?;
        status.is_success().then_some(())
    })
    .await;

    // A request is painted by both; one dies, then the node whose clients all processes may be.
    let asked = join_all((0..6).map(|seed| {
        let url = url.clone();
        async move { http::generate(&url, &request(10 * seed)).await }
    }));
    let (answers, ()) = tokio::join!(asked, async {
        until("somebody paints", || async {
            let workers = http::get(&format!("{url}/v1/workers")).await;
            let text = workers.body.to_string();
            text.contains("\"busy\"").then_some(())
        })
        .await;
        denoisers[0].kill();
        site.nodes[0].kill();
    });
    for (seed, answer) in (0..).zip(&answers) {
        assert_eq!(answer.seeds(), [10 * seed, 10 * seed + 1], "{answer:?}");
    }
    assert_eq!(site.last_violations(), [""; 0]);
    for process in [&gateway, &watcher, &batcher, &denoisers[1]] {
        assert!(
            !process.log().contains("Permissions Violation"),
            "{}",
            process.log()
        );
    }
}

/// Of a fleet's file, for a machine beside those of the brokers.
fn fleet_file(site: &Site) -> String {
    let times = root().join("infra/times/ascend.json");
    let urls: Vec<_> = site.nodes.iter().map(Broker::url).collect();
    let folder = site.secrets.folder();
    format!(
        r#"
engine = "replay"
times = {times:?}
time_scale = 0.05

[ar]
devices = [0]
slots_max = 4

[denoisers]
devices = [1, 2]

[gateway]
listen = "127.0.0.1:0"

[start]
loading_max = 3
loading_s = 30

[broker]
urls = {urls:?}
credentials = {folder:?}
ca = {:?}
replicas = 3
ack_wait_s = 5
"#,
        folder.join("ca.pem")
    )
}

/// Of a denoiser that waits for work.
async fn idle_denoiser(url: &str, but: Option<u64>) -> Option<u64> {
    let workers = http::get(&format!("{url}/v1/workers")).await;
    let workers = workers.body["data"].as_array()?.clone();
    let idle = workers
        .iter()
        .filter(|worker| worker["role"] == "denoiser" && worker["state"] == "idle");
    let processes: Vec<_> = idle
        .filter_map(|worker| worker["process"].as_u64())
        .collect();
    let all = processes.len() == 2 && but.is_none_or(|gone| !processes.contains(&gone));
    all.then(|| processes[0])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_of_a_file_gives_each_of_its_processes_its_own_credential() {
    let mut site = Site::start();
    let path = |name: &str| site.folder.path().join(name).to_str().unwrap().to_owned();
    let (file, data, url_file) = (path("fleet.toml"), path("data"), path("url"));
    fs::write(&file, fleet_file(&site)).unwrap();
    let flags = [
        "up",
        "--fleet",
        &file,
        "--data",
        &data,
        "--url-file",
        &url_file,
    ];
    let mut up = Process::start(&binary("fresco"), "up", &flags, site.folder.path());
    // It makes the streams, too.
    let url = until_up(&mut up, &url_file).await;
    let (good, said) = site.nats("check", &REPLICAS);
    assert!(good, "{said}");
    let answer = http::generate(&url, &request(1)).await;
    assert_eq!(answer.seeds(), [1, 2], "{answer:?}");

    let victim = until("both denoisers are idle", || idle_denoiser(&url, None)).await;
    let victim_id = Pid::from_raw(i32::try_from(victim).unwrap());
    kill(victim_id, Signal::SIGKILL).unwrap();
    until("another is in its place", || {
        idle_denoiser(&url, Some(victim))
    })
    .await;
    let answer = http::generate(&url, &request(10)).await;
    assert_eq!(answer.seeds(), [10, 11], "{answer:?}");

    let status = up.terminate(STOPS_WITHIN).await;
    assert!(status.success(), "{status} {}", up.log());
    assert_eq!(site.last_violations(), [""; 0]);
}
