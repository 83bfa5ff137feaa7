//! `fresco up --fleet` with the layout of sixteen devices: fourteen denoisers, of which any three may be killed.

use std::{
    collections::BTreeSet,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use futures::future::join_all;
use integration::{
    binary,
    fleet::{until, until_up},
    http,
    process::Process,
    root,
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
    async fn start() -> Self {
        let folder = TempDir::with_prefix("fresco-fleet-").unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (data, url_file) = (path("data"), path("url"));
        let file = root().join("infra/fleet/replay-16.toml");
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
        let workers = http::get(&format!("{}/v1/workers", self.url)).await;
        let workers = workers.body["data"].as_array().cloned().unwrap_or_default();
        let denoisers = workers.iter().filter(|worker| worker["role"] == "denoiser");
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
    let fleet = Fleet::start().await;
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
    assert!(!log.contains("does not answer"), "{log}");
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
