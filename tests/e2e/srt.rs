//! A fleet whose AR stage is an SRT server: a fake one, since no SGLang runs here, held to the contract.

use integration::{
    TINY_CODEBOOK_SIZE,
    api::Api,
    fleet::{Engine, Fleet, REPLAY_ACK_WAIT, Size, until},
    http,
    srt::{FakeSrt, Fault, Rule, Setup, prior},
};
use protocol::{DenoiseParameters, ImageSize, Seed};
use replay::{ArTimes, DenoiseTimes, Scene, Table, Times, picture};
use serde_json::{Value, json};

const STEPS: u16 = 2;
const INSTANT: &[(u32, f64)] = &[(1, 0.0)];
/// Nothing finishes within a test.
const NEVER: &[(u32, f64)] = &[(1, 3_600_000.0)];

fn table(rows_ms: &'static [(u32, f64)]) -> Table {
    Table {
        ar: ArTimes::new(rows_ms, 258),
        denoise: DenoiseTimes {
            step_ms: 1.0,
            decode_ms: 1.0,
        },
    }
}

fn setup(rows_ms: &'static [(u32, f64)]) -> Setup {
    let times = Times::new(table(rows_ms), 1.0).unwrap();
    Setup::new(times, TINY_CODEBOOK_SIZE)
}

async fn server(setup: Setup) -> FakeSrt {
    FakeSrt::start_anywhere(setup).await.unwrap()
}

async fn fleet(servers: &[&FakeSrt]) -> Fleet {
    let engine = Engine::Srt {
        urls: servers.iter().map(|server| server.url()).collect(),
        table: table(INSTANT),
    };
    let size = Size {
        ack_wait: REPLAY_ACK_WAIT,
        engine,
        // No quarantine: who fails here is meant to.
        ar_flags: &["--srt-timeout-s", "2", "--failures-max", "1000"],
        ..Size::default()
    };
    Fleet::start(size).await
}

fn request(seed: u64, n: u8) -> Value {
    json!({"prompt": "a red fox", "size": "96x64", "seed": seed, "n": n, "num_inference_steps": STEPS})
}

/// The picture of `request(seed, _)`'s first output.
fn expected(seed: u64) -> Vec<u8> {
    let (seed, size) = (Seed::new(seed).unwrap(), ImageSize::new(96, 64).unwrap());
    let denoise = DenoiseParameters::new(STEPS, DenoiseParameters::GUIDANCE_SCALE_DEFAULT);
    let scene = Scene {
        prompt: "a red fox",
        seed,
        size,
        denoise: denoise.unwrap(),
        prior: &prior(seed, size, TINY_CODEBOOK_SIZE),
    };
    picture(&scene).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pictures_are_painted_from_what_srt_wrote_over_connections_that_are_kept() {
    let server = server(setup(INSTANT)).await;
    let fleet = fleet(&[&server]).await;
    let three = http::generate(&fleet.gateway, &request(7, 3)).await;
    assert_eq!(http::pictures(&three).await, [7, 8, 9].map(expected));
    // The preview of 13 x 19, the large grid of 2 x 3 and the end.
    assert_eq!(
        three.body["usage"]["output_tokens"],
        3 * (13 * 19 + 2 * 3 + 1)
    );
    for seed in 100..130 {
        let answer = http::generate(&fleet.gateway, &request(seed, 1)).await;
        assert_eq!(http::pictures(&answer).await, [expected(seed)]);
    }
    let seen = server.seen();
    // A probe every 5 s has one of its own; uvicorn would have closed it by the next.
    assert!(seen.connections * 2 < seen.calls, "{seen:?}");
    assert_eq!((seen.violations, seen.seeds.len()), (vec![], 33));

    let (ready, text) = fleet.ar_readiness().await.unwrap();
    let told = [server.url().as_str(), "sampling_seed counts"].map(|part| text.contains(part));
    assert_eq!((ready, told), (true, [true; 2]), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fault_of_srt_is_its_own_rows_and_one_that_passes_is_nobodys() {
    let server = server(setup(INSTANT)).await;
    let fleet = fleet(&[&server]).await;
    let given_up = Some((500, "attempts_exhausted".to_owned()));
    let refused = Some((400, "invalid_parameter".to_owned()));
    let mut seed = 1_000;
    for (fault, times, wanted) in [
        (Fault::ShortIds, None, &given_up),
        (Fault::IdsOutOfRange, None, &given_up),
        (Fault::EarlyEos, None, &given_up),
        (Fault::MissingUsage, None, &given_up),
        (Fault::WrongLength, None, &given_up),
        (Fault::BadRequest, None, &refused),
        (Fault::ServerError, None, &given_up),
        (Fault::Reset, None, &given_up),
        (Fault::Hang, Some(1), &None),
        (Fault::StalledBody, Some(1), &None),
        (Fault::Abort, Some(1), &None),
        (Fault::ShortIds, Some(2), &None),
        (Fault::Reset, Some(2), &None),
        (Fault::ServerError, Some(2), &None),
        (Fault::Slow, Some(1), &None),
    ] {
        seed += 10;
        let rule = Rule {
            seed: Some(seed),
            times,
            fault,
        };
        server.script(&[rule]);
        // One request, so that the poison has companions in its batch where there are batches.
        let (poison, good) = (request(seed, 1), request(seed + 1, 2));
        let (poison, good) = tokio::join!(
            http::generate(&fleet.gateway, &poison),
            http::generate(&fleet.gateway, &good)
        );
        let pictures = http::pictures(&good).await;
        assert_eq!(pictures, [seed + 1, seed + 2].map(expected), "{fault:?}");
        match wanted {
            None => assert_eq!(http::pictures(&poison).await, [expected(seed)], "{fault:?}"),
            Some(wanted) => {
                let found = (poison.status.as_u16(), poison.error().0.to_owned());
                assert_eq!(&found, wanted, "{fault:?}");
            }
        }
        if fault == Fault::BadRequest {
            let seeds = server.seen().seeds;
            let asked = seeds.iter().filter(|asked| **asked == seed).count();
            assert_eq!(asked, 1, "what is refused is not asked again");
        }
    }
    assert_eq!(server.seen().violations, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_reaches_the_server() {
    let server = server(setup(NEVER)).await;
    let fleet = fleet(&[&server]).await;
    let api = Api::new(&fleet.gateway);
    let job = api.submit(&request(7, 1)).await;
    until("the row is in flight", || async {
        (server.rows_in_flight() == 1).then_some(())
    })
    .await;
    api.cancel(&job).await;
    until("the row is aborted", || async {
        let seen = server.seen();
        (!seen.aborts.is_empty() && seen.aborts == seen.rids).then_some(())
    })
    .await;
    assert_eq!(server.rows_in_flight(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_wait_for_a_server_that_was_killed_and_are_written_by_the_next() {
    let first = server(setup(NEVER)).await;
    let fleet = fleet(&[&first]).await;
    let api = Api::new(&fleet.gateway);
    let job = api.submit(&request(7, 2)).await;
    until("the rows are in flight", || async {
        (first.rows_in_flight() == 2).then_some(())
    })
    .await;
    let address = first.address();
    first.kill().await;
    let later = api.submit(&request(20, 1)).await;
    let readiness = until("the batcher tells it", || async {
        let (ready, text) = fleet.ar_readiness().await?;
        (!ready).then_some(text)
    });
    let readiness = readiness.await;
    assert!(
        readiness.contains(&format!("http://{address}")),
        "{readiness}"
    );

    let second = FakeSrt::start(address, setup(INSTANT)).await.unwrap();
    for job in [job, later] {
        let ended = api.until_ended(&job).await;
        assert_eq!(ended["status"], "completed", "{ended}");
    }
    until("the batcher is ready again", || async {
        fleet.ar_readiness().await?.0.then_some(())
    })
    .await;
    assert_eq!(second.seen().violations, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_server_is_asked_again_and_nobody_fails() {
    let small = Setup {
        rows_max: 2,
        ..setup(&[(1, 20.0)])
    };
    let server = server(small).await;
    let fleet = fleet(&[&server]).await;
    let answer = http::generate(&fleet.gateway, &request(7, 8)).await;
    let known: Vec<_> = (7..15).map(expected).collect();
    assert_eq!(http::pictures(&answer).await, known);
    let seen = server.seen();
    assert!(seen.seeds.len() > 8, "it was full: {seen:?}");
    assert!(seen.rows_in_flight_max <= 2, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_share_the_load_and_one_alone_goes_on() {
    let slow = || setup(&[(1, 50.0)]);
    let (one, two) = (server(slow()).await, server(slow()).await);
    let fleet = fleet(&[&one, &two]).await;
    let answer = http::generate(&fleet.gateway, &request(7, 8)).await;
    let known: Vec<_> = (7..15).map(expected).collect();
    assert_eq!(http::pictures(&answer).await, known);
    let rows = [&one, &two].map(|server| server.seen().seeds.len());
    assert_eq!(rows.iter().sum::<usize>(), 8);
    assert!(rows.iter().all(|rows| *rows >= 3), "{rows:?}");

    one.kill().await;
    let answer = http::generate(&fleet.gateway, &request(50, 8)).await;
    let known: Vec<_> = (50..58).map(expected).collect();
    assert_eq!(http::pictures(&answer).await, known);
}
