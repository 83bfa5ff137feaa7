//! Deadlines that nobody is left to keep but the gateway, and messages that come too late.

use std::time::{Duration, Instant};

use integration::{
    api::{Api, first_output},
    fleet::{Engine, Fleet, Size, until},
};
use protocol::{ErrorCode, Role};
use replay::{ArTimes, DenoiseTimes, Fault, FaultStage, Rule, Table};
use serde_json::{Value, json};

const QUICK: Table = Table {
    ar: ArTimes::new(&[(1, 6.0), (2, 7.0)], 258),
    denoise: DenoiseTimes {
        step_ms: 5.0,
        decode_ms: 1.0,
    },
};

fn request(prompt: &str, timeout_s: u32) -> Value {
    json!({"prompt": prompt, "size": "32x32", "num_inference_steps": 1, "timeout_s": timeout_s})
}

fn hang(stage: FaultStage) -> Rule {
    Rule {
        prompt_contains: "stuck".into(),
        stage,
        fault: Fault::Hang,
    }
}

/// 504 at a second after it was asked, a tenth of one more or less.
async fn expires_on_time(api: &Api) {
    let start = Instant::now();
    let answer = api.generate(&request("a fox", 1), &[]).await.unwrap();
    let took = start.elapsed();
    assert_eq!(
        (answer.status.as_u16(), answer.error().0),
        (504, "deadline_exceeded")
    );
    let error = took.abs_diff(Duration::from_secs(1));
    assert!(error <= Duration::from_millis(100), "answered at {took:?}");
}

async fn rows(fleet: &Fleet) -> u64 {
    let name = "fresco_ar_rows_started";
    fleet.counter(Role::ArBatcher, name).await
}

#[tokio::test]
async fn a_deadline_fires_on_time_although_every_worker_is_stuck_and_nobody_does_it_later() {
    let mut fleet = Fleet::start(Size {
        denoisers: 2,
        ack_wait: Duration::from_secs(3),
        engine: Engine::Replay(QUICK),
        ..Size::default()
    })
    .await;
    let api = Api::new(&fleet.gateway);
    fleet.script(&[hang(FaultStage::Denoise)]);
    for _ in 0..2 {
        let stuck = api.submit(&request("stuck", 60)).await;
        api.until_state(&stuck, "denoise_running").await;
    }
    expires_on_time(&api).await;
    fleet.script(&[hang(FaultStage::Prior)]);
    let stuck = api.submit(&request("stuck", 60)).await;
    api.until_state(&stuck, "ar_running").await;
    let (first, second) = tokio::join!(expires_on_time(&api), expires_on_time(&api));
    assert_eq!((first, second), ((), ()));

    // Their own gateway is gone before their time is: only the message can tell.
    let left = [
        api.submit(&request("a fox", 1)).await,
        api.submit(&request("an owl", 1)).await,
    ];
    fleet.gateway_process.kill();
    let (_gateway, api) = fleet.start_gateway("gateway-2", &[]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;

    fleet.script(&[]);
    fleet.ar_batcher.kill();
    for denoiser in &mut fleet.denoisers {
        denoiser.kill();
    }
    fleet.replace_ar_batcher();
    fleet.add_denoiser("again-0");
    fleet.add_denoiser("again-1");
    for job in &left {
        let output = first_output(job);
        let result = until("it has ended", || async {
            fleet.bus.result(output).await.ok()?
        })
        .await;
        let error = result.outcome.unwrap_err();
        assert_eq!(error.code, ErrorCode::DeadlineExceeded);
    }
    let last = api.submit(&request("a fox", 60)).await;
    assert_eq!(api.until_ended(&last).await["status"], "completed");
    fleet.until_queues_empty().await;
    // What was stuck, and the last one; the batcher that hung had handed the first two on.
    let painted = "fresco_outputs_painted";
    assert_eq!(fleet.counter(Role::Denoiser, painted).await, 4);
    assert_eq!(rows(&fleet).await, 2);
}
