//! Many more requests than workers: who finds no room is told when to come back, and it is true; what was let in ends;
//! and the gateway does not grow.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use integration::{
    api::{Api, IN_BACKGROUND},
    fleet::{Engine, Fleet, Size},
    http::Answer,
    process::Process,
};
use replay::{ArTimes, DenoiseTimes, Table};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Two denoisers make five pictures a second.
const SLOW: Table = Table {
    ar: ArTimes::new(&[(1, 22.0), (2, 24.0)], 258),
    denoise: DenoiseTimes {
        step_ms: 380.0,
        decode_ms: 2.0,
    },
};

/// Twelve seconds of work.
const OUTPUTS_MAX: usize = 60;

/// A thousand a second on two cores that have nothing else to do.
const REQUESTS: usize = 20_000;

/// Kept connections of the flood: as many requests are at the gateway at once.
const CONNECTIONS: usize = 32;

/// The gateway may grow by this over what it is after a thousandth part of the flood. It keeps nothing of a refused
/// request: measured was less than 1 MB, which is the allocator's. The prompts alone, 4,000 bytes each, would be 80 MB.
const GROWTH_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// A prompt as long as it may be, so that one that is kept is seen.
fn request(i: usize) -> Value {
    let prompt = format!("fox {i} {}", "x".repeat(4_000));
    json!({"prompt": prompt, "size": "32x32", "num_inference_steps": 1})
}

/// Seconds after which a refused client should come back.
fn told_s(answer: &Answer) -> f64 {
    let code = (answer.status.as_u16(), answer.error().0);
    assert_eq!(code, (429, "queue_full"));
    let told = answer.headers["retry-after"].to_str().unwrap();
    told.parse().unwrap()
}

/// Asks again as soon as it has its picture, so that hardly anybody is refused and the queue is always full; when each
/// came.
async fn keep_full(api: Api, stop: Arc<AtomicBool>) -> Vec<Instant> {
    let mut ends = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let answer = api.generate_patiently(&request(ends.len()), &[]).await;
        if answer.status == 429 {
            // What the broker still holds for a moment of an output that has ended takes its place until the next look.
            break;
        }
        answer.data();
        ends.push(Instant::now());
    }
    ends
}

/// How far `Retry-After` is from the truth, on average and as a part of it. The k-th client to be refused is told when
/// its turn comes; in truth it is when the k-th place gets free, which is when the k-th picture from there is there.
async fn error_of_retry_after(api: &Api) -> f64 {
    let stop = Arc::new(AtomicBool::new(false));
    let client = |_| keep_full(api.clone(), Arc::clone(&stop));
    let clients: JoinSet<_> = (0..OUTPUTS_MAX).map(client).collect();
    // What a gateway needs to have measured something.
    tokio::time::sleep(Duration::from_secs(6)).await;
    stop.store(true, Ordering::Relaxed);
    // Whoever was let in before the first refusal found a place that was free anyway.
    let (mut first, mut told, mut let_in) = (None, Vec::new(), 0);
    while told.len() < OUTPUTS_MAX - 10 {
        let answer = api.generate(&request(0), &[IN_BACKGROUND]).await.unwrap();
        if answer.status != 202 {
            first.get_or_insert_with(Instant::now);
            told.push((Instant::now(), told_s(&answer)));
        } else if first.is_some() {
            // A place got free in this very moment.
            let_in += 1;
        }
    }
    let ends = clients.join_all().await.into_iter().flatten();
    let mut freed: Vec<_> = ends.filter(|end| Some(*end) > first).collect();
    freed.sort_unstable();
    let one = |((asked, told), freed): (&(Instant, f64), &Instant)| {
        // Less than a second cannot be told.
        let truth = freed.duration_since(*asked).as_secs_f64().max(1.0);
        (told - truth).abs() / truth
    };
    let errors: Vec<f64> = told
        .iter()
        .zip(freed.iter().skip(let_in))
        .map(one)
        .collect();
    assert!(errors.len() >= told.len() - 2, "{} places", freed.len());
    errors.iter().sum::<f64>() / errors.len() as f64
}

/// Resident memory of a process.
fn rss_bytes(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = kilobytes.unwrap().trim().strip_suffix(" kB").unwrap();
    kilobytes.parse::<u64>().unwrap() * 1024
}

/// What came of a flood.
#[derive(Default)]
struct Flood {
    requests: usize,
    next: AtomicUsize,
    accepted: Mutex<Vec<String>>,
    refused: AtomicUsize,
}

async fn pour(api: Api, flood: Arc<Flood>) {
    loop {
        let i = flood.next.fetch_add(1, Ordering::Relaxed);
        if i >= flood.requests {
            return;
        }
        let answer = api.generate_patiently(&request(i), &[IN_BACKGROUND]).await;
        if answer.status == 202 {
            flood.accepted.lock().unwrap().push(answer.id());
        } else {
            assert!(told_s(&answer) >= 1.0);
            flood.refused.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Pours `requests` and returns the gateway's memory by what was poured in thousandths.
async fn memory_under(flood: &Arc<Flood>, api: &Api, gateway: &Process) -> BTreeMap<usize, u64> {
    let client = |_| pour(api.clone(), Arc::clone(flood));
    let mut clients: JoinSet<()> = (0..CONNECTIONS).map(client).collect();
    let mut memory = BTreeMap::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(50));
    loop {
        tokio::select! {
            client = clients.join_next() => match client {
                Some(client) => client.unwrap(),
                None => return memory,
            },
            _ = ticks.tick() => {
                let poured = flood.next.load(Ordering::Relaxed);
                memory.insert(poured * 1_000 / flood.requests, rss_bytes(gateway));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_thousand_requests_are_told_the_truth_and_the_gateway_does_not_grow_a28_a66() {
    let mut fleet = Fleet::start(Size {
        denoisers: 2,
        ack_wait: Duration::from_secs(3),
        engine: Engine::Replay(SLOW),
        ..Size::default()
    })
    .await;
    // It would be told that half of the places are its own.
    fleet
        .gateway_process
        .terminate(Duration::from_secs(5))
        .await;
    let limit = format!("--queue-outputs-max={OUTPUTS_MAX}");
    let (gateway, api) = fleet.start_gateway("limited", &[&limit]).await;
    let error = error_of_retry_after(&api).await;

    let flood = Arc::new(Flood {
        requests: REQUESTS,
        ..Flood::default()
    });
    let start = Instant::now();
    let memory = memory_under(&flood, &api, &gateway).await;
    let took = start.elapsed();
    let accepted = std::mem::take(&mut *flood.accepted.lock().unwrap());
    for job in &accepted {
        assert_eq!(api.until_ended(job).await["status"], "completed");
    }
    let refused = flood.refused.load(Ordering::Relaxed);
    let early = *memory.iter().find(|(part, _)| **part >= 1).unwrap().1;
    let most = *memory.values().max().unwrap();
    let rate = REQUESTS as f64 / took.as_secs_f64();
    println!(
        "{REQUESTS} requests in {took:?}, {rate:.0} a second: {} accepted and ended, {refused} refused; \
         resident memory {} KB at first, {} KB at most; Retry-After is off by {:.0} %",
        accepted.len(),
        early / 1024,
        most / 1024,
        error * 100.0
    );
    assert_eq!(accepted.len() + refused, REQUESTS);
    assert!(accepted.len() >= OUTPUTS_MAX);
    assert!(most <= early + GROWTH_BYTES_MAX, "{memory:?}");
    assert!(error <= 0.3, "Retry-After is off by {error}");
    fleet.until_queues_empty().await;
}
