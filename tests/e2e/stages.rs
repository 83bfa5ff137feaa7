//! Both stages at work: outputs of a request side by side, sizes that do not wait for each other, and an AR stage that
//! keeps the denoisers fed without running ahead of them.

use std::time::{Duration, Instant};

use integration::{
    api::Api,
    fleet::{Fleet, until},
    http,
};
use protocol::{
    ArJob, DenoiseParameters, ImageFormat, JobId, OutputId, OutputIndex, OutputRequest,
    PriorityClass, Role, Seed,
};
use replay::{ArTimes, DenoiseTimes, Table};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// AR in 20 ms, a step in 100 ms.
const SLOW_PAINTING: Table = Table {
    ar: ArTimes::new(&[(1, 20.0)], 258),
    denoise: DenoiseTimes {
        step_ms: 100.0,
        decode_ms: 1.0,
    },
};

/// AR in 50 ms, a picture in no time.
const SLOW_WRITING: Table = Table {
    ar: ArTimes::new(&[(1, 50.0)], 258),
    denoise: DenoiseTimes {
        step_ms: 1.0,
        decode_ms: 1.0,
    },
};

fn request(size: &str, steps: u32, n: u8) -> Value {
    json!({"prompt": "a fox", "size": size, "num_inference_steps": steps, "n": n, "seed": 7})
}

#[tokio::test]
async fn eight_outputs_on_eight_idle_denoisers_take_the_time_of_one() {
    let fleet = Fleet::replay(8, SLOW_PAINTING).await;
    let picture = Duration::from_millis(10 * 100 + 1);
    let start = Instant::now();
    let answer = http::generate(&fleet.gateway, &request("64x64", 10, 8)).await;
    let took = start.elapsed();
    assert_eq!(answer.data().len(), 8);
    fleet.until_queues_empty().await;
    let painted = fleet
        .counter_by_worker(Role::Denoiser, "fresco_outputs_painted")
        .await;
    assert_eq!(painted, [1; 8], "one each");
    println!("8 pictures of {picture:?} in {took:?}");
    assert!(took < picture * 2, "{took:?}");
}

const CLIENTS: usize = 48;
const ROUNDS: usize = 44;
/// Of so many requests one is of the rare size: 1 %.
const RARE: usize = 100;
/// Fewer say little of how they wait.
const RARE_MIN: usize = 20;

/// What the last one in a hundred waits.
fn p99(waits: &mut [u64]) -> u64 {
    waits.sort_unstable();
    waits[(waits.len() * 99).div_ceil(100) - 1]
}

#[tokio::test]
async fn a_rare_size_waits_no_longer_than_a_common_one_at_overload() {
    let fleet = Fleet::replay(4, SLOW_WRITING).await;
    let client = |i: usize| {
        let api = Api::new(&fleet.gateway);
        async move {
            let mut waits = Vec::new();
            for round in 0..ROUNDS {
                let rare = (round * CLIENTS + i) % RARE == RARE / 2;
                let size = if rare { "64x96" } else { "64x64" };
                let answer = api.generate_patiently(&request(size, 1, 1), &[]).await;
                let timings = &answer.data()[0]["timings"];
                waits.push((rare, timings["ar_wait_ms"].as_u64().unwrap()));
            }
            waits
        }
    };
    let clients: JoinSet<Vec<(bool, u64)>> = (0..CLIENTS).map(client).collect();
    let waits = clients.join_all().await.concat();
    let of = |kind: bool| -> Vec<u64> {
        let waits = waits.iter().filter(|(rare, _)| *rare == kind);
        waits.map(|(_, ms)| *ms).collect()
    };
    let (mut rare, mut common) = (of(true), of(false));
    let (rare_p99, common_p99) = (p99(&mut rare), p99(&mut common));
    println!(
        "{} rare: {rare_p99} ms, {} common: {common_p99} ms",
        rare.len(),
        common.len()
    );
    assert!(rare.len() >= RARE_MIN, "{} rare ones", rare.len());
    // Three calls deep, or there is nothing to wait for.
    assert!(common_p99 >= 150, "no overload: {common_p99} ms");
    assert!(rare_p99 <= 2 * common_p99, "{rare_p99} ms");
}

/// A request of one output for `class`, published as a gateway does.
async fn publish(fleet: &Fleet, class: PriorityClass, steps: u16) -> OutputId {
    let job = JobId::generate();
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let now = u64::try_from(now.as_millis()).unwrap();
    let index = OutputIndex::FIRST;
    let seed = Seed::new(7).unwrap();
    let request = ArJob {
        job,
        prompt: "a fox".into(),
        outputs: vec![OutputRequest { index, seed }],
        size: "64x64".parse().unwrap(),
        format: ImageFormat::Png,
        denoise: DenoiseParameters::new(steps, 1.5).unwrap(),
        prior: None,
        accepted_at: now,
        deadline_at: now + 60_000,
    };
    fleet
        .bus
        .publish_ar_job(class, None, &request)
        .await
        .unwrap();
    job.output(index)
}

async fn finished_at(fleet: &Fleet, output: OutputId) -> u64 {
    let result = until("it has ended", || async {
        fleet.bus.result(output).await.ok()?
    });
    result.await.timings.finished_at
}

#[tokio::test]
async fn the_ar_stage_waits_for_the_denoisers_and_an_urgent_request_overtakes_what_waits() {
    // One denoiser: the one being painted and two more, and what was in flight when there was no more room.
    let fleet = Fleet::replay_writing(1, SLOW_PAINTING, &["--slots-max", "2"]).await;
    let ahead_max = 3 + 2;
    let mut standard = Vec::new();
    for _ in 0..16 {
        standard.push(publish(&fleet, PriorityClass::Standard, 5).await);
    }
    let most = async {
        let mut most = 0;
        loop {
            let depth = fleet.bus.queues().await.unwrap().denoise;
            most = most.max(depth.queued + depth.held);
            let calls = fleet.counter(Role::ArBatcher, "fresco_ar_rows_finished");
            if calls.await >= 8 {
                return most;
            }
        }
    };
    let most = most.await;
    println!("at most {most} outputs at the denoise stage");
    assert!((3..=ahead_max).contains(&most), "{most}");

    let high = publish(&fleet, PriorityClass::High, 5).await;
    let high_end = finished_at(&fleet, high).await;
    let mut later = 0;
    for output in standard {
        if finished_at(&fleet, output).await > high_end {
            later += 1;
        }
    }
    // Of the 16 Standard ones, 8 had left the AR stage, and two may have been in flight and one more.
    println!("the urgent one overtook {later}");
    assert!(later >= 16 - 8 - 3, "it overtook only {later}");
    fleet.until_queues_empty().await;
}
