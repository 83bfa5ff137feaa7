//! A denoiser goes away in mid-job: another one does its output, the AR stage is not asked again.

use std::time::{Duration, Instant};

use integration::{
    fleet::{Fleet, Size},
    http::{self, Answer},
};
use nix::sys::signal::Signal;
use protocol::Role;
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// Long enough to be met in the middle: some seconds of denoising with the tiny model.
fn long_request() -> Value {
    json!({"prompt": "a red fox", "size": "128x128", "seed": 7, "num_inference_steps": 400})
}

/// Short, so that a lost worker does not cost the test 15 s; long beside the progress period of a loaded machine.
const ACK_WAIT: Duration = Duration::from_secs(3);

/// The request, asked by a client that waits beside the test.
fn in_background(fleet: &Fleet, request: Value) -> JoinSet<Answer> {
    let gateway = fleet.gateway.clone();
    JoinSet::from_iter([async move { http::generate(&gateway, &request).await }])
}

#[derive(Clone, Copy)]
enum Loss {
    Killed,
    Terminated,
}

/// The picture of a job whose worker was lost, and how long it took from the loss until another worker had it.
async fn picture_after(loss: Loss) -> (Vec<u8>, Duration) {
    let mut fleet = Fleet::start(Size {
        denoisers: 2,
        ack_wait: ACK_WAIT,
        ..Size::default()
    })
    .await;
    let job = in_background(&fleet, long_request());
    let (worker, output) = fleet.until_painting().await;

    let lost = Instant::now();
    match loss {
        Loss::Killed => fleet.denoisers[worker].kill(),
        Loss::Terminated => {
            let status = fleet.denoisers[worker]
                .terminate(Duration::from_secs(5))
                .await;
            assert!(status.success(), "{status}");
        }
    }
    let (_, again) = fleet.until_painting_but(Some(worker)).await;
    let taken_over = lost.elapsed();
    assert_eq!(again, output, "the same output");

    let answer = job.join_all().await.remove(0);
    let picture = http::pictures(&answer).await.remove(0);
    fleet.until_queues_empty().await;
    assert_eq!(
        fleet
            .counter(Role::ArBatcher, "fresco_ar_engine_calls")
            .await,
        1,
        "a retry skips the AR stage"
    );
    assert_eq!(
        fleet
            .counter(Role::Denoiser, "fresco_outputs_painted")
            .await,
        1,
        "by the worker that is left"
    );

    // The picture does not depend on who painted it, nor on what happened before.
    let undisturbed = http::generate(&fleet.gateway, &long_request()).await;
    assert_eq!(http::pictures(&undisturbed).await[0], picture);
    (picture, taken_over)
}

#[tokio::test]
async fn a_killed_denoisers_output_is_painted_by_another_a10() {
    let (_, taken_over) = picture_after(Loss::Killed).await;
    assert!(
        taken_over < ACK_WAIT + Duration::from_secs(1),
        "after {taken_over:?}"
    );
}

#[tokio::test]
async fn a_terminated_denoiser_gives_its_output_back_at_once() {
    let (_, taken_over) = picture_after(Loss::Terminated).await;
    assert!(taken_over < Duration::from_secs(1), "after {taken_over:?}");
}

#[tokio::test]
async fn a_frozen_denoiser_loses_its_output_and_works_on_afterwards_a09() {
    let fleet = Fleet::start(Size {
        denoisers: 2,
        ack_wait: ACK_WAIT,
        ..Size::default()
    })
    .await;
    let job = in_background(&fleet, long_request());
    let (worker, _) = fleet.until_painting().await;
    fleet.denoisers[worker].signal(Signal::SIGSTOP);
    let answer = job.join_all().await.remove(0);
    fleet.denoisers[worker].signal(Signal::SIGCONT);
    let picture = http::pictures(&answer).await.remove(0);

    fleet.until_idle(2).await;
    let again = http::generate(&fleet.gateway, &long_request()).await;
    assert_eq!(http::pictures(&again).await[0], picture);
}

/// Ten rows of a larger grid: the AR stage takes a second or more.
fn wide_request() -> Value {
    json!({"prompt": "a red fox", "size": "256x256", "seed": 7, "num_inference_steps": 1, "n": 10})
}

#[tokio::test]
async fn a_lost_ar_batchers_request_is_run_by_another_a48() {
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let mut fleet = Fleet::start(Size {
            denoisers: 2,
            ack_wait: ACK_WAIT,
            ..Size::default()
        })
        .await;
        let job = in_background(&fleet, wide_request());
        fleet.until_ar_runs().await;
        fleet.ar_batcher.signal(signal);
        let status = fleet.ar_batcher.end(Duration::from_secs(5)).await;
        assert_eq!(status.success(), signal == Signal::SIGTERM, "{status}");
        fleet.replace_ar_batcher();

        let answer = job.join_all().await.remove(0);
        assert_eq!(answer.seeds(), (7..17).collect::<Vec<_>>(), "{signal}");
        let pictures = http::pictures(&answer).await;
        let undisturbed = http::generate(&fleet.gateway, &wide_request()).await;
        assert_eq!(http::pictures(&undisturbed).await, pictures, "{signal}");
    }
}

#[tokio::test]
async fn the_ar_stage_works_on_while_a_denoiser_paints_a54() {
    let fleet = Fleet::start(Size {
        denoisers: 1,
        ..Size::default()
    })
    .await;
    let first = in_background(&fleet, long_request());
    fleet.until_painting().await;
    let mut second = long_request();
    second["num_inference_steps"] = json!(1);
    let second = http::generate(&fleet.gateway, &second).await;
    first.join_all().await;

    // Its prior was written while the only denoiser was at the first one, so what it waited for was the denoiser.
    let timings = &second.data()[0]["timings"];
    let ms = |part: &str| timings[part].as_u64().expect("every stage was run");
    assert!(
        ms("denoise_wait_ms") > ms("ar_wait_ms") + ms("ar_run_ms"),
        "{timings}"
    );
}
