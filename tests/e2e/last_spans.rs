//! What a denoiser tells of an attempt that it leaves while its device still works on it: the call on the device may
//! take longer than the process has, or never come back.

use std::time::Duration;

use integration::{
    api::Api,
    fleet::{Engine, Fleet, REPLAY_ACK_WAIT, Size},
    otlp::{Captured, Collector},
};
use protocol::trace::{attribute, span, value};
use replay::{ArTimes, DenoiseTimes, Fault, FaultStage, Rule, Table};
use serde_json::json;

/// A step that no process waits for.
const ENDLESS: Table = Table {
    ar: ArTimes::new(&[(1, 5.0)], 254),
    denoise: DenoiseTimes {
        step_ms: 600_000.0,
        decode_ms: 5.0,
    },
};

/// A process's own time to end, its spans' and a loaded machine's.
const END_WITHIN: Duration = Duration::from_secs(20);

/// One denoiser, with these flags, that paints.
async fn painting(collector: &Collector, script: &[Rule], flags: &[&str]) -> Fleet {
    let size = Size {
        denoisers: 1,
        ack_wait: REPLAY_ACK_WAIT,
        engine: Engine::Replay(ENDLESS),
        shell_flags: [
            "--otlp-endpoint",
            &collector.url(),
            "--otlp-protocol",
            "grpc",
        ]
        .map(str::to_owned)
        .to_vec(),
        ..Size::default()
    };
    let fleet = Fleet::start_with(size, flags).await;
    fleet.script(script);
    let request = json!({"prompt": "a red fox", "size": "64x64", "num_inference_steps": 2});
    Api::new(&fleet.gateway).submit(&request).await;
    fleet.until_painting().await;
    fleet
}

/// The span of the only attempt.
async fn attempt(collector: &Collector) -> Captured {
    let told = "the attempt is told";
    collector
        .until(told, |spans| {
            let mut attempts = spans.iter().filter(|s| s.name() == span::PROCESS_DENOISE);
            attempts.next().cloned()
        })
        .await
}

#[tokio::test]
async fn an_attempt_that_sigterm_interrupts_is_told_although_its_device_works_on() {
    let collector = Collector::start().await;
    let mut fleet = painting(&collector, &[], &[]).await;
    let status = fleet.denoisers[0].terminate(END_WITHIN).await;
    assert!(status.success(), "{status}");
    let attempt = attempt(&collector).await;
    assert_eq!(attempt.text(attribute::OUTCOME), Some(value::GIVEN_BACK));
    assert!(!attempt.failed());
    // As whoever published it calls it.
    let subject = attempt.text(attribute::MESSAGING_DESTINATION_NAME);
    let subject = subject.unwrap_or_default();
    assert!(subject.starts_with("e2e.dn.standard."), "{subject}");
}

#[tokio::test]
async fn a_device_that_hangs_is_the_error_of_its_attempt() {
    let collector = Collector::start().await;
    let hang = Rule {
        prompt_contains: "fox".into(),
        stage: FaultStage::Denoise,
        fault: Fault::Hang,
    };
    let mut fleet = painting(&collector, &[hang], &["--stall-max-s", "1"]).await;
    let status = fleet.denoisers[0].end(END_WITHIN).await;
    assert!(!status.success(), "{status}");
    let attempt = attempt(&collector).await;
    assert_eq!(
        attempt.text(attribute::ERROR_TYPE),
        Some(value::DEVICE_HANGS)
    );
    assert!(attempt.failed());
}
