//! A worker that loses its job and finishes all the same changes nothing, and works on.

use std::time::Duration;

use integration::{
    fleet::{Engine, Fleet, Size, until},
    http,
};
use nix::sys::signal::Signal;
use protocol::Role;
use replay::{ArTimes, DenoiseTimes, Table};
use serde_json::{Value, json};
use tokio::task::JoinSet;

const ACK_WAIT: Duration = Duration::from_secs(2);

/// One step is a whole picture: nothing can stop it on the way.
const TABLE: Table = Table {
    ar: ArTimes::new(&[(1, 22.0), (2, 24.0)], 254),
    denoise: DenoiseTimes {
        step_ms: 2_000.0,
        decode_ms: 2.0,
    },
};

fn request(prompt: &str) -> Value {
    json!({"prompt": prompt, "size": "96x64", "seed": 7, "num_inference_steps": 1})
}

#[tokio::test]
async fn a_worker_that_was_frozen_in_its_only_step_is_second_once_and_works_on() {
    let fleet = Fleet::start(Size {
        denoisers: 2,
        ack_wait: ACK_WAIT,
        engine: Engine::Replay(TABLE),
        ..Size::default()
    })
    .await;
    let painted = async || {
        let painted = fleet.counter_by_worker(Role::Denoiser, "fresco_outputs_painted");
        let mut painted = painted.await;
        painted.sort_unstable();
        painted
    };
    let suppressed = async || {
        fleet
            .counter(Role::Denoiser, "fresco_results_suppressed")
            .await
    };

    let gateway = fleet.gateway.clone();
    let first = async move { http::generate(&gateway, &request("a red fox")).await };
    let first = JoinSet::from_iter([first]);
    let (worker, _) = fleet.until_painting().await;
    fleet.denoisers[worker].signal(Signal::SIGSTOP);
    let first = first.join_all().await.remove(0);
    assert_eq!(first.data().len(), 1);
    fleet.denoisers[worker].signal(Signal::SIGCONT);
    until("the second result is dropped", || async {
        (suppressed().await > 0).then_some(())
    })
    .await;
    // Of the worker that was never frozen: a frozen one has no counters to show.
    assert_eq!(painted().await, [0, 1]);

    // One place a worker, none of them taken for ever: both jobs are painted at once, by both.
    fleet.until_idle(2).await;
    let (one, two) = (request("a blue fox"), request("a green fox"));
    let (one, two) = tokio::join!(
        http::generate(&fleet.gateway, &one),
        http::generate(&fleet.gateway, &two)
    );
    assert_eq!((one.data().len(), two.data().len()), (1, 1));
    fleet.until_queues_empty().await;
    assert_eq!(painted().await, [1, 2]);
    assert_eq!(suppressed().await, 1);
}
