//! `fresco up --fleet`: the layout of sixteen devices, of whose fourteen denoisers any three may be killed; and a file whose
//! AR stage is an SRT server that it starts, which may be killed too.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use futures::future::join_all;
use integration::{
    binary,
    fleet::{until, until_up},
    free_port, http,
    process::Process,
    root, tiny_model,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rand::{SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use tempfile::TempDir;

const DENOISERS: usize = 14;
const CLIENTS: u64 = 8;

/// The drain of the file, and what an ordered stop takes besides.
const STOPS_WITHIN: Duration = Duration::from_secs(40);

struct Fleet {
    process: Process,
    url: String,
    folder: TempDir,
}

impl Fleet {
    async fn start(file: &Path, folder: TempDir) -> Self {
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (data, url_file) = (path("data"), path("url"));
        let server = root().join(".fresco/bin/nats-server");
        let flags = [
            ["up", "--fleet"],
            [file.to_str().unwrap(), "--data"],
            [&data, "--url-file"],
            [&url_file, "--nats-server"],
        ];
        let flags = [flags.as_flattened(), &[server.to_str().unwrap()]].concat();
        let mut process = Process::start(&binary("fresco"), "up", &flags, folder.path());
        let url = until_up(&mut process, &url_file).await;
        Self {
            process,
            url,
            folder,
        }
    }

    /// Processes of the denoisers that the gateway tells of, each with what it does.
    async fn denoisers(&self) -> Vec<(u64, String)> {
        self.workers("denoiser").await
    }

    async fn workers(&self, role: &str) -> Vec<(u64, String)> {
        let workers = http::get(&format!("{}/v1/workers", self.url)).await;
        let workers = workers.body["data"].as_array().cloned().unwrap_or_default();
        let denoisers = workers.iter().filter(|worker| worker["role"] == role);
        let shown = |worker: &Value| {
            Some((
                worker["process"].as_u64()?,
                worker["state"].as_str()?.to_owned(),
            ))
        };
        denoisers.filter_map(shown).collect()
    }

    /// What each worker's device is called.
    async fn devices(&self) -> BTreeSet<String> {
        let workers = http::get(&format!("{}/v1/workers", self.url)).await;
        let workers = workers.body["data"].as_array().cloned().unwrap_or_default();
        let devices = workers
            .iter()
            .filter_map(|worker| worker["device"].as_str());
        devices.map(str::to_owned).collect()
    }

    async fn until_all_work(&self, gone: &[u64]) {
        until("fourteen denoisers work", || async {
            let denoisers = self.denoisers().await;
            let working = denoisers.iter().filter(|(process, state)| {
                !gone.contains(process) && ["idle", "busy"].contains(&state.as_str())
            });
            (working.count() == DENOISERS).then_some(())
        })
        .await;
    }
}

fn folder() -> TempDir {
    TempDir::with_prefix("fresco-fleet-").unwrap()
}

fn request(seed: u64) -> Value {
    json!({"prompt": "a red fox", "size": "64x64", "seed": seed, "n": 2, "num_inference_steps": 20})
}

fn runs(process: u64) -> bool {
    Path::new(&format!("/proc/{process}/cmdline")).exists()
}

/// How the second and the third death of a round follow the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pace {
    /// At once.
    Together,
    /// When the one before is gone and its successor has not come yet.
    WhileOneComesBack,
    /// When its successor paints: the successor dies.
    OfTheSuccessor,
}

/// Three that paint, drawn by `seed`.
async fn kill_three(fleet: &Fleet, pace: Pace, seed: u64, gone: &mut Vec<u64>) {
    let mut random = StdRng::seed_from_u64(seed);
    let before: Vec<u64> = fleet
        .denoisers()
        .await
        .into_iter()
        .map(|(process, _)| process)
        .collect();
    for nth in 0..3 {
        let successor = pace == Pace::OfTheSuccessor && nth > 0;
        let painting = until("one to kill paints", || async {
            let denoisers = fleet.denoisers().await;
            let painting = denoisers.into_iter().filter(|(_, state)| state == "busy");
            let painting = painting.map(|(process, _)| process);
            let wanted = |process: &u64| {
                !gone.contains(process) && (!successor || !before.contains(process))
            };
            let painting: Vec<_> = painting.filter(wanted).collect();
            (!painting.is_empty()).then_some(painting)
        });
        let victim = *painting.await.choose(&mut random).unwrap();
        kill(
            Pid::from_raw(i32::try_from(victim).unwrap()),
            Signal::SIGKILL,
        )
        .unwrap();
        gone.push(victim);
        if pace == Pace::WhileOneComesBack {
            until("it is known to be gone", || async {
                let denoisers = fleet.denoisers().await;
                let there = denoisers.iter().any(|(process, _)| *process == victim);
                (!there).then_some(())
            })
            .await;
        }
    }
}

/// Three times three; says whom. Returns when all are back.
async fn kill_in_threes(fleet: &Fleet) -> Vec<u64> {
    let mut gone = Vec::new();
    let paces = [
        Pace::Together,
        Pace::WhileOneComesBack,
        Pace::OfTheSuccessor,
    ];
    for (seed, pace) in (0..).zip(paces) {
        kill_three(fleet, pace, seed, &mut gone).await;
        fleet.until_all_work(&gone).await;
    }
    gone
}

#[tokio::test(flavor = "multi_thread")]
async fn any_three_of_fourteen_denoisers_may_be_killed_and_no_request_fails() {
    let file = root().join("infra/fleet/replay-16.toml");
    let fleet = Fleet::start(&file, folder()).await;
    fleet.until_all_work(&[]).await;
    // By the numbers in the file: they are how a person finds the card of the one that is ill.
    let mut devices: BTreeSet<_> = (2..16).map(|number| format!("replay:{number}")).collect();
    devices.insert("replay:0,1".to_owned());
    assert_eq!(fleet.devices().await, devices);
    let stop = AtomicBool::new(false);
    let client = async |client: u64| {
        let mut painted = 0;
        while !stop.load(Ordering::Relaxed) {
            let seed = 1_000 * client + 2 * painted;
            let answer = http::generate(&fleet.url, &request(seed)).await;
            assert_eq!(answer.seeds(), [seed, seed + 1], "{answer:?}");
            painted += 1;
        }
        painted
    };
    let load = join_all((0..CLIENTS).map(client));
    let deaths = async {
        let gone = kill_in_threes(&fleet).await;
        stop.store(true, Ordering::Relaxed);
        gone
    };
    let (painted, gone) = tokio::join!(load, deaths);
    println!("{painted:?} requests a client, none failed; killed {gone:?}");
    assert_eq!(gone.len(), 9);
    assert!(painted.iter().all(|painted| *painted > 0), "{painted:?}");
    answers_whom_it_let_in(fleet).await;
}

/// A request that is painted at the wish to stop is answered, and nothing is left over.
async fn answers_whom_it_let_in(mut fleet: Fleet) {
    let denoisers = fleet.denoisers().await;
    let processes: Vec<_> = denoisers.into_iter().map(|(process, _)| process).collect();
    let late = json!({"prompt": "p", "size": "64x64", "seed": 1, "num_inference_steps": 50});
    let url = fleet.url.clone();
    let (answer, status) = tokio::join!(http::generate(&url, &late), async {
        until("it is painted", || async {
            let denoisers = fleet.denoisers().await;
            denoisers
                .iter()
                .any(|(_, state)| state == "busy")
                .then_some(())
        })
        .await;
        fleet.process.terminate(STOPS_WITHIN).await
    });
    assert_eq!(answer.data().len(), 1);
    let log = fleet.process.log();
    assert!(status.success(), "{status} {log}");
    assert!(!log.contains("hangs"), "{log}");
    let left: Vec<_> = processes
        .into_iter()
        .filter(|process| runs(*process))
        .collect();
    assert_eq!(
        left,
        [0; 0],
        "left over in {}",
        fleet.folder.path().display()
    );
}

/// Writes a fleet file whose SRT server is our fake one, on a port that is free.
fn served(folder: &Path) -> PathBuf {
    let file = folder.join("fleet.toml");
    let text = r#"
engine = "srt"
model = "MODEL"
[pin]
variable = "CUDA_VISIBLE_DEVICES"
device = "cpu"
[ar]
devices = [0, 1]
srt_urls = ["http://127.0.0.1:PORT"]
[ar.server]
command = ["SERVER", "--listen", "127.0.0.1:{port}", "--times", "TIMES", "--time-scale", "0.1", "--codebook-size", "512"]
[denoisers]
devices = [2, 3]
[gateway]
listen = "127.0.0.1:0"
"#;
    let path = |path: PathBuf| path.to_str().unwrap().to_owned();
    let text = text
        .replace("MODEL", &path(tiny_model()))
        .replace("PORT", &free_port().to_string())
        .replace("SERVER", &path(binary("fake-srt")))
        .replace("TIMES", &path(root().join("infra/times/ascend.json")));
    fs::write(&file, text).unwrap();
    file
}

/// Processes whose parent is `parent`, each with its command line.
fn children(parent: u32) -> Vec<(u64, String)> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let child = |entry: fs::DirEntry| {
        let process = entry.file_name().to_str()?.parse().ok()?;
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let is_ours = status
            .lines()
            .any(|line| line == format!("PPid:\t{parent}"));
        let line = fs::read_to_string(entry.path().join("cmdline")).ok()?;
        is_ours.then_some((process, line))
    };
    processes.filter_map(child).collect()
}

/// The SRT server's process, once it is another one than `before`.
async fn srt_server(fleet: &Fleet, before: Option<u64>) -> u64 {
    let is_it = |(process, line): &(u64, String)| {
        line.split('\0')
            .next()
            .is_some_and(|program| program.ends_with("/fake-srt"))
            && Some(*process) != before
    };
    until("the SRT server runs", || async {
        let found = children(fleet.process.id()).into_iter().find(is_it);
        found.map(|(process, _)| process)
    })
    .await
}

/// Kills the SRT server while it writes, twice; returns when its last successor has written for somebody.
async fn kill_the_server(fleet: &Fleet, answered: &AtomicU64) {
    let mut server = srt_server(fleet, None).await;
    for _ in 0..2 {
        let writes = || async {
            let batchers = fleet.workers("ar-batcher").await;
            batchers
                .iter()
                .any(|(_, state)| state == "busy")
                .then_some(())
        };
        until("rows are written", writes).await;
        kill(
            Pid::from_raw(i32::try_from(server).unwrap()),
            Signal::SIGKILL,
        )
        .unwrap();
        let before = answered.load(Ordering::Relaxed);
        server = srt_server(fleet, Some(server)).await;
        // More than what denoisers had by then.
        let more = || async { (answered.load(Ordering::Relaxed) >= before + 8).then_some(()) };
        until("requests are answered again", more).await;
    }
    let devices = fs::read_to_string(format!("/proc/{server}/environ")).unwrap();
    let its = |variable: &str| variable == "CUDA_VISIBLE_DEVICES=0,1";
    assert!(devices.split('\0').any(its), "{devices}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_srt_server_of_the_file_may_be_killed_while_it_writes_and_no_request_fails() {
    let folder = folder();
    let file = served(folder.path());
    let mut fleet = Fleet::start(&file, folder).await;
    let stop = AtomicBool::new(false);
    let answered = AtomicU64::new(0);
    let client = async |client: u64| {
        let mut painted = 0;
        loop {
            let seed = 1_000 * client + painted;
            let request =
                json!({"prompt": "p", "size": "96x64", "seed": seed, "num_inference_steps": 2});
            let answer = http::generate(&fleet.url, &request).await;
            assert_eq!(answer.seeds(), [seed], "{answer:?}");
            answered.fetch_add(1, Ordering::Relaxed);
            painted += 1;
            if stop.load(Ordering::Relaxed) {
                return painted;
            }
        }
    };
    let load = join_all((0..4).map(client));
    let deaths = async {
        kill_the_server(&fleet, &answered).await;
        stop.store(true, Ordering::Relaxed);
    };
    let (painted, ()) = tokio::join!(load, deaths);
    println!("{painted:?} requests a client, none failed");
    let log = fleet.process.log();
    let told = log
        .matches("srt-0 was killed by signal 9, starts again")
        .count();
    assert_eq!(told, 2, "{log}");
    let server_log = fleet.folder.path().join("data/logs/srt-0.log");
    let said = fs::read_to_string(server_log).unwrap();
    assert!(said.contains("http://127.0.0.1:"), "{said}");

    let all = children(fleet.process.id());
    assert_eq!(all.len(), 6, "{all:?}");
    fleet.process.signal(Signal::SIGINT);
    let status = fleet.process.end(STOPS_WITHIN).await;
    assert!(status.success(), "{status} {}", fleet.process.log());
    let left: Vec<_> = all
        .into_iter()
        .filter(|(process, _)| runs(*process))
        .collect();
    assert_eq!(left, []);
}
