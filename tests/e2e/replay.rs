//! A fleet that replays: every picture is known beforehand, and fails exactly where the script says.

use integration::{
    fleet::{Engine, Fleet, Size, until},
    http,
};
use protocol::{DenoiseParameters, ImageSize, Role, Seed};
use replay::{ArTimes, DenoiseTimes, Fault, FaultStage, Rule, Scene, Table, picture, prior_tokens};
use serde_json::{Value, json};

/// Two outputs of one moment meet two denoisers: a picture takes much longer than both AR batches.
const TABLE: Table = Table {
    ar: ArTimes::new(&[(1, 22.0), (2, 24.0)], 254),
    denoise: DenoiseTimes {
        step_ms: 100.0,
        decode_ms: 2.0,
    },
};
const STEPS: u16 = 4;

async fn fleet() -> Fleet {
    Fleet::start(Size {
        engine: Engine::Replay(TABLE),
        ..Size::default()
    })
    .await
}

fn request(prompt: &str, n: u8) -> Value {
    json!({"prompt": prompt, "size": "96x64", "seed": 7, "n": n, "num_inference_steps": STEPS})
}

/// The picture of `request(prompt, _)` with this seed.
fn expected(prompt: &str, seed: u64) -> Vec<u8> {
    let (seed, size) = (Seed::new(seed).unwrap(), ImageSize::new(96, 64).unwrap());
    let scene = Scene {
        prompt,
        seed,
        size,
        denoise: DenoiseParameters::new(STEPS, DenoiseParameters::GUIDANCE_SCALE_DEFAULT).unwrap(),
        prior: &prior_tokens(seed, size),
    };
    picture(&scene).unwrap()
}

#[tokio::test]
async fn a_request_gives_the_same_bytes_at_any_time_and_on_any_worker_a63() {
    let fleet = fleet().await;
    let fox = request("a red fox", 1);
    let (one, two) = tokio::join!(
        http::generate(&fleet.gateway, &fox),
        http::generate(&fleet.gateway, &fox)
    );
    until("each denoiser has painted one", || async {
        let painted = fleet
            .counter_by_worker(Role::Denoiser, "fresco_outputs_painted")
            .await;
        (painted == [1, 1]).then_some(())
    })
    .await;
    let later = http::generate(&fleet.gateway, &fox).await;
    for answer in [one, two, later] {
        let pictures = http::pictures(&answer).await;
        assert_eq!(pictures, [expected("a red fox", 7)]);
    }
}

#[tokio::test]
async fn every_output_is_the_picture_of_its_own_seed_a22_a52() {
    let fleet = fleet().await;
    let answer = http::generate(&fleet.gateway, &request("a red fox", 3)).await;
    assert_eq!(answer.seeds(), [7, 8, 9]);
    let pictures = http::pictures(&answer).await;
    let known = [7, 8, 9].map(|seed| expected("a red fox", seed));
    assert_eq!(pictures, known);
    assert_ne!(known[0], known[1]);
    assert_ne!(known[1], known[2]);
}

#[tokio::test]
async fn a_scripted_failure_is_its_own_requests_and_ends_with_the_script_a01() {
    let fleet = fleet().await;
    let (good, poison) = (request("a red fox", 1), request("a poison", 1));
    for stage in [FaultStage::Prior, FaultStage::Denoise] {
        fleet.script(&[Rule {
            prompt_contains: "poison".into(),
            stage,
            fault: Fault::Fail,
        }]);
        let (good, failed) = tokio::join!(
            http::generate(&fleet.gateway, &good),
            http::generate(&fleet.gateway, &poison)
        );
        let failure = (failed.status.as_u16(), failed.error().0);
        assert_eq!(failure, (500, "attempts_exhausted"));
        assert_eq!(http::pictures(&good).await, [expected("a red fox", 7)]);

        fleet.script(&[]);
        let healed = http::generate(&fleet.gateway, &poison).await;
        assert_eq!(http::pictures(&healed).await, [expected("a poison", 7)]);
    }
}
