//! Cancels, with workers that really hold what is cancelled: in every state, by who asks and by who leaves, and in a
//! race with two thousand completions.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use integration::{
    api::{Api, IN_BACKGROUND, first_output},
    fleet::{BATCHED, Fleet, until},
};
use nix::sys::signal::Signal;
use protocol::Role;
use replay::{ArTimes, DenoiseTimes, Fault, FaultStage, Rule, Table};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// One step of [`SLOW`].
const STEP: Duration = Duration::from_millis(100);

/// Wide requests stay with the AR stage for 1.6 s, narrow ones with many steps with a denoiser.
const SLOW: Table = Table {
    ar: ArTimes::new(&[(1, 210.0), (2, 410.0)], 258),
    denoise: DenoiseTimes {
        step_ms: 100.0,
        decode_ms: 2.0,
    },
};

fn narrow(steps: u32) -> Value {
    json!({"prompt": "a fox", "size": "32x32", "seed": 7, "num_inference_steps": steps})
}

fn wide() -> Value {
    let mut request = narrow(1);
    request["n"] = json!(8);
    request
}

const STATES: [(&str, &str); 9] = [
    ("queued", "cancelled"),
    ("ar_waiting", "cancelled"),
    ("ar_running", "cancelled"),
    ("denoise_waiting", "cancelled"),
    ("denoise_running", "cancelled"),
    ("done", "completed"),
    ("failed", "failed"),
    ("cancelled", "cancelled"),
    ("expired", "expired"),
];

/// A job in `state`, and the one that is in its way there, with the state of that.
async fn job_in(fleet: &Fleet, api: &Api, state: &str) -> (String, Option<(String, &'static str)>) {
    let job = match state {
        "queued" => {
            fleet.ar_batcher.signal(Signal::SIGSTOP);
            api.submit(&narrow(1)).await
        }
        "ar_waiting" => {
            let first = api.submit(&wide()).await;
            api.until_state(&first, "ar_running").await;
            let job = api.submit(&narrow(1)).await;
            api.until_state(&job, state).await;
            return (job, Some((first, "ar_running")));
        }
        "ar_running" => api.submit(&wide()).await,
        "denoise_waiting" => {
            let first = api.submit(&narrow(200)).await;
            api.until_state(&first, "denoise_running").await;
            let job = api.submit(&narrow(1)).await;
            api.until_state(&job, state).await;
            return (job, Some((first, "denoise_running")));
        }
        "denoise_running" => api.submit(&narrow(200)).await,
        "failed" => {
            let mut request = narrow(1);
            request["prompt"] = json!("a poison");
            api.submit(&request).await
        }
        "cancelled" => {
            let job = api.submit(&narrow(200)).await;
            api.cancel(&job).await;
            job
        }
        "expired" => {
            let mut request = narrow(200);
            request["timeout_s"] = json!(0.5);
            api.submit(&request).await
        }
        _ => api.submit(&narrow(1)).await,
    };
    api.until_state(&job, state).await;
    (job, None)
}

#[tokio::test]
async fn a_job_is_cancelled_in_every_state_and_its_worker_is_free_within_a_step_a64_a69() {
    let fleet = Fleet::replay_writing(1, SLOW, BATCHED).await;
    fleet.script(&[Rule {
        prompt_contains: "poison".into(),
        stage: FaultStage::Prior,
        fault: Fault::Fail,
    }]);
    let api = Api::new(&fleet.gateway);
    for (state, wanted) in STATES {
        let (job, other) = job_in(&fleet, &api, state).await;
        let start = Instant::now();
        let told = api.cancel(&job).await;
        assert_eq!(told["status"], wanted, "{state}");
        if let Some((other, its_state)) = other {
            let other_job = api.job(&other).await;
            let states = other_job["outputs"].as_array().unwrap();
            let untouched = |output: &Value| output["state"] == its_state;
            assert!(states.iter().all(untouched), "{state}: {other_job}");
            api.cancel(&other).await;
        }
        if state == "queued" {
            fleet.ar_batcher.signal(Signal::SIGCONT);
        }
        fleet.until_idle(1).await;
        let free = start.elapsed();
        if state.starts_with("denoise") {
            let within = STEP + Duration::from_millis(250);
            assert!(free < within, "{state}: free after {free:?}");
        }
        fleet.until_queues_empty().await;
        // Three failures of the only batcher are its quarantine too.
        until("the gateway is ready", || async {
            api.readiness().await?.is_success().then_some(())
        })
        .await;
        // Asking twice is asking once.
        let again = api.cancel(&job).await;
        assert_eq!(again["status"], wanted, "{state}");
        assert_eq!(again["outputs"], told["outputs"], "{state}");
    }
    // Of nine jobs and two companions one was painted, and one is now.
    let last = api.submit(&narrow(1)).await;
    assert_eq!(api.until_ended(&last).await["status"], "completed");
    fleet.until_queues_empty().await;
    assert_eq!(painted(&fleet).await, 2);
}

async fn painted(fleet: &Fleet) -> u64 {
    let name = "fresco_outputs_painted";
    fleet.counter(Role::Denoiser, name).await
}

/// Asks for a picture, leaves when a denoiser paints it, and returns the job.
async fn ask_and_leave(fleet: &Fleet, headers: &'static [(&'static str, &'static str)]) -> String {
    let api = Api::new(&fleet.gateway);
    // With the set the client's connection goes.
    let client = JoinSet::from_iter([async move { api.generate(&narrow(8), headers).await }]);
    let (_, output) = fleet.until_painting().await;
    drop(client);
    output.job.to_string()
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_job_unless_it_may_come_back_a05() {
    let fleet = Fleet::replay(1, SLOW).await;
    let api = Api::new(&fleet.gateway);
    let cases: [(&[_], _); 4] = [
        (&[], "cancelled"),
        (&[("fresco-on-disconnect", "continue")], "completed"),
        (&[("idempotency-key", "k")], "completed"),
        (&[], "cancelled"),
    ];
    for (headers, wanted) in cases {
        let job = ask_and_leave(&fleet, headers).await;
        assert_eq!(api.until_ended(&job).await["status"], wanted, "{headers:?}");
        fleet.until_idle(1).await;
    }
    let hasty = Api::new(&fleet.gateway);
    let job = hasty.submit(&narrow(8)).await;
    drop(hasty);
    assert_eq!(api.until_ended(&job).await["status"], "completed");
    fleet.until_queues_empty().await;
    assert_eq!(painted(&fleet).await, 3);
}

/// Jobs of a few milliseconds.
const INSTANT: Table = Table {
    ar: ArTimes::new(&[(1, 1.5), (2, 2.0)], 258),
    denoise: DenoiseTimes {
        step_ms: 1.0,
        decode_ms: 0.0,
    },
};

const CANCELS: u64 = 2_000;
/// One job in so many is nobody's to cancel.
const BYSTANDER_EVERY: u64 = 4;
/// What two cores can do at once without every job waiting for longer than its cancel.
const CLIENTS: usize = 6;

/// What came of the race: jobs with the status that their cancel told, bystanders with `completed`.
type Told = Mutex<Vec<(String, String)>>;

/// What the racing clients share.
struct Race {
    next: AtomicU64,
    /// Longest pause between a job and its cancel.
    pause_max: Duration,
    told: Told,
}

impl Race {
    /// The same for each run, and evenly spread.
    fn pause(&self, i: u64) -> Duration {
        let part = (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33) % 1_000;
        self.pause_max * u32::try_from(part).unwrap() / 1_000
    }
}

/// How long a job takes here and now, beside as many others as in the race: the middle one of a hundred. On an idle
/// machine of two cores it is 30 ms, 20 of them the AR stage's wait for company.
async fn usual_time(gateway: &str) -> Duration {
    let client = |_| {
        let api = Api::new(gateway);
        async move {
            let mut times = Vec::new();
            for _ in 0..20 {
                let start = Instant::now();
                api.generate(&narrow(1), &[]).await.unwrap().data();
                times.push(start.elapsed());
            }
            times
        }
    };
    let clients: JoinSet<_> = (0..CLIENTS).map(client).collect();
    let mut times: Vec<_> = clients.join_all().await.into_iter().flatten().collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// A job in the background, under a key.
async fn submit(api: &Api, key: &str, request: &Value) -> String {
    let headers = [("idempotency-key", key), IN_BACKGROUND];
    let accepted = api.generate_patiently(request, &headers).await;
    assert_eq!(accepted.status, StatusCode::ACCEPTED, "{}", accepted.body);
    accepted.id()
}

async fn race(api: Api, race: Arc<Race>) {
    loop {
        let i = race.next.fetch_add(1, Ordering::Relaxed);
        if i >= CANCELS {
            return;
        }
        let (key, request) = (format!("key-{i}"), narrow(1));
        let headers = [("idempotency-key", key.as_str())];
        let job = submit(&api, &key, &request).await;
        let mut ended = Vec::new();
        if i.is_multiple_of(BYSTANDER_EVERY) {
            let bystander = submit(&api, &format!("by-{key}"), &request).await;
            ended.push((bystander, "completed".to_owned()));
        }
        let cancel = async {
            tokio::time::sleep(race.pause(i)).await;
            let told = api.cancel(&job).await;
            told["status"].as_str().unwrap().to_owned()
        };
        let status = if i.is_multiple_of(2) {
            cancel.await
        } else {
            // Another client that wants the same picture, and waits for it.
            let join = api.generate_patiently(&request, &headers);
            let (status, joined) = tokio::join!(cancel, join);
            let heard = match joined.status.as_u16() {
                200 => "completed",
                409 => joined.error().0,
                _ => panic!("{joined:?}"),
            };
            assert_eq!(heard, status, "{job}");
            status
        };
        ended.push((job, status));
        race.told.lock().unwrap().extend(ended);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_cancels_race_with_completions_and_hit_their_own_job_only_a31() {
    let fleet = Fleet::replay(4, INSTANT).await;
    let usual = usual_time(&fleet.gateway).await;
    let racing = Arc::new(Race {
        next: AtomicU64::new(0),
        pause_max: usual * 3 / 2,
        told: Told::default(),
    });
    let start = Instant::now();
    let client = |_| race(Api::new(&fleet.gateway), Arc::clone(&racing));
    let clients: JoinSet<()> = (0..CLIENTS).map(client).collect();
    clients.join_all().await;
    let took = start.elapsed();
    let told = std::mem::take(&mut *racing.told.lock().unwrap());
    assert_eq!(told.len() as u64, CANCELS + CANCELS / BYSTANDER_EVERY);

    let mut completed = 0;
    for (job, status) in &told {
        let output = first_output(job);
        let result = until("a bystander has ended", || async {
            fleet.bus.result(output).await.ok()?
        })
        .await;
        let stored = match result.outcome {
            Ok(_) => "completed".to_owned(),
            Err(error) => error.code.to_string(),
        };
        assert_eq!(&stored, status, "{job}");
        completed += u64::from(stored == "completed");
    }
    let cancelled = told.len() as u64 - completed;
    println!("{cancelled} cancelled, {completed} completed in {took:?}; a job takes {usual:?}");
    // A race that always ends alike is none.
    for outcome in [cancelled, completed - CANCELS / BYSTANDER_EVERY] {
        assert!(outcome >= CANCELS / 100, "{cancelled} of {CANCELS}");
    }
    fleet.until_idle(4).await;
    fleet.until_queues_empty().await;
    let before = 20 * CLIENTS as u64;
    assert_eq!(
        painted(&fleet).await,
        before + completed,
        "each picture once"
    );
    assert_eq!(fleet.bus.dead_letters().await.unwrap(), []);
}
