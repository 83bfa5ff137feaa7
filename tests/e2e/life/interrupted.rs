//! Work whose worker or broker goes away in its midst: no failure of its own.

use std::time::Duration;

use integration::{
    fleet::{Engine, Fleet, REPLAY_ACK_WAIT, Size, until},
    http,
};
use nix::sys::signal::Signal;
use protocol::{OutputId, OutputState, Role, WorkStage};
use replay::{ArTimes, Table};
use serde_json::json;
use service::IMPATIENT_AFTER;

use super::{QUICK, SLOW, in_background, request};

async fn painted(fleet: &Fleet) -> u64 {
    fleet
        .counter(Role::Denoiser, "fresco_outputs_painted")
        .await
}

#[tokio::test]
async fn a_lost_batcher_redoes_only_what_was_not_fanned_out_a34_a83() {
    let slow_ar = Table {
        ar: ArTimes::new(&[(1, 1_500.0)], 258),
        ..QUICK
    };
    let mut fleet = Fleet::replay(2, slow_ar).await;
    // Ten outputs in batches of eight: two batches.
    let mut wide = request("a fox", 1);
    wide["n"] = json!(10);
    let job = in_background(&fleet, vec![wide]);
    until("they are painted", || async {
        (painted(&fleet).await == 8).then_some(())
    })
    .await;
    fleet.ar_batcher.kill();
    fleet.replace_ar_batcher();
    let answer = job.join_all().await.remove(0);
    assert_eq!(answer.data().len(), 10);
    let process = fleet.ar_batcher.id();
    let workers = fleet.bus.workers().await.unwrap();
    let second = workers
        .iter()
        .find(|worker| worker.process == process)
        .unwrap();
    let address = second.health_address.unwrap();
    let (_, metrics) = http::text(&format!("http://{address}/metrics"))
        .await
        .unwrap();
    assert!(
        metrics.contains("fresco_ar_rows_started_total 2\n"),
        "{metrics}"
    );
    fleet.until_queues_empty().await;
    assert_eq!(painted(&fleet).await, 10);
}

#[tokio::test]
async fn a_life_tells_where_an_output_is_and_who_tried() {
    let mut fleet = Fleet::replay(2, SLOW).await;
    let job = in_background(&fleet, vec![request("a fox", 8)]);
    let (worker, output) = fleet.until_painting().await;
    let life = fleet.bus.life(output).await.unwrap().unwrap();
    assert_eq!(life.state, OutputState::DenoiseRunning);
    fleet.denoisers[worker]
        .terminate(Duration::from_secs(5))
        .await;
    let answer = job.join_all().await.remove(0);
    assert_eq!(answer.data().len(), 1);
    let life = fleet.bus.life(output).await.unwrap().unwrap();
    let denoise = life
        .attempts
        .iter()
        .filter(|a| a.stage == WorkStage::Denoise);
    assert_eq!(denoise.count(), 2);
    assert_eq!(
        life.counted(WorkStage::Denoise).count(),
        1,
        "only the one that is still open"
    );
}

#[tokio::test]
async fn a_gateway_that_is_told_twice_answers_who_waits_at_once() {
    let waits_long = ["--grace-s", "600"].map(str::to_owned);
    let mut fleet = Fleet::start(Size {
        denoisers: 1,
        engine: Engine::Replay(SLOW),
        shell_flags: waits_long.to_vec(),
        ..Size::default()
    })
    .await;
    fleet.script(&[]);
    let job = in_background(&fleet, vec![request("a fox", 400)]);
    fleet.until_painting().await;
    fleet.gateway_process.signal(Signal::SIGTERM);
    // Sooner it would be the same wish.
    tokio::time::sleep(IMPATIENT_AFTER).await;
    fleet.gateway_process.signal(Signal::SIGTERM);
    let answer = job.join_all().await.remove(0);
    assert_eq!(answer.status, 503, "{answer:?}");
    let said = answer.body["error"]["message"].to_string();
    assert!(said.contains("the job goes on"), "{said}");
    let ended = fleet.gateway_process.end(Duration::from_secs(10)).await;
    assert!(ended.success(), "{ended}");
}

#[tokio::test]
async fn a_batcher_that_is_told_to_stop_is_no_failure_of_its_outputs() {
    let slow_ar = Table {
        ar: ArTimes::new(&[(1, 2_000.0)], 258),
        ..QUICK
    };
    let mut fleet = Fleet::replay(1, slow_ar).await;
    let mut wide = request("a fox", 1);
    wide["n"] = json!(3);
    let job = in_background(&fleet, vec![wide]);
    fleet.until_ar_runs().await;
    fleet.ar_batcher.terminate(Duration::from_secs(5)).await;
    fleet.replace_ar_batcher();
    let answer = job.join_all().await.remove(0);
    for image in answer.data() {
        let output: OutputId = image["id"].as_str().unwrap().parse().unwrap();
        let life = fleet.bus.life(output).await.unwrap().unwrap();
        let prior = || life.attempts.iter().filter(|a| a.stage == WorkStage::Prior);
        assert_eq!(prior().count(), 2, "{life:?}");
        assert!(prior().all(|attempt| !attempt.counts()), "{life:?}");
    }
}

#[tokio::test]
async fn a_broker_that_is_away_is_no_failure_of_the_outputs() {
    let mut fleet = Fleet::replay(1, SLOW).await;
    let job = in_background(&fleet, vec![request("a fox", 30)]);
    let (_, output) = fleet.until_painting().await;
    fleet.broker.kill();
    tokio::time::sleep(REPLAY_ACK_WAIT + Duration::from_secs(2)).await;
    fleet.broker.start_again();
    let answer = job.join_all().await.remove(0);
    assert_eq!(answer.data().len(), 1);
    let life = fleet.bus.life(output).await.unwrap().unwrap();
    let counted: Vec<_> = life.counted(WorkStage::Denoise).collect();
    // The last one is still open: its end is the result.
    assert!(
        counted.iter().all(|attempt| attempt.outcome.is_none()),
        "{life:?}"
    );
}
