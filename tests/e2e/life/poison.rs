//! Outputs that every worker fails at, and a worker that fails at every output.

use std::{collections::BTreeSet, time::Duration};

use integration::{
    binary,
    fleet::{Fleet, until},
    http::{self, Answer},
};
use protocol::{ErrorCode, JobId, Role, WorkStage, WorkerState};
use replay::{Fault, FaultStage, Rule};
use serde_json::json;
use tokio::task::JoinSet;

use super::{QUICK, in_background, request};

fn poison(stage: FaultStage, fault: Fault) -> Rule {
    Rule {
        prompt_contains: "poison".into(),
        stage,
        fault,
    }
}

#[tokio::test]
async fn a_poison_prompt_is_given_up_and_everything_else_goes_on() {
    let fleet = Fleet::replay(3, QUICK).await;
    fleet.script(&[poison(FaultStage::Denoise, Fault::Fail)]);
    let mut requests = vec![request("a poison", 4)];
    requests.extend((0..12).map(|i| request(&format!("fox {i}"), 4)));
    let answers = in_background(&fleet, requests).join_all().await;
    let ended = |answer: &&Answer| answer.status.is_success();
    assert_eq!(answers.iter().filter(ended).count(), 12);
    let failed = answers.iter().find(|answer| !ended(answer)).unwrap();
    assert_eq!(failed.error().0, "attempts_exhausted");

    let letters = fleet.bus.dead_letters().await.unwrap();
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!(letter.stage, WorkStage::Denoise);
    let counted: Vec<_> = letter.attempts.iter().filter(|a| a.counts()).collect();
    let workers: BTreeSet<_> = counted.iter().map(|attempt| &attempt.worker).collect();
    assert!((3..=4).contains(&counted.len()), "{counted:?}");
    assert!(workers.len() >= 2, "{workers:?}");
    let text = failed.body["error"]["message"].as_str().unwrap();
    assert!(text.contains(&letter.output.to_string()), "{text}");
    fleet.until_idle(3).await;
}

#[tokio::test]
async fn a_dead_letter_can_be_replayed_once_the_poison_is_gone() {
    let fleet = Fleet::replay(2, QUICK).await;
    fleet.script(&[poison(FaultStage::Denoise, Fault::Fail)]);
    let failed = http::generate(&fleet.gateway, &request("a poison", 4)).await;
    assert_eq!(failed.error().0, "attempts_exhausted");
    let letter = fleet.bus.dead_letters().await.unwrap().remove(0);

    fleet.script(&[]);
    let replay = std::process::Command::new(binary("fresco"))
        .args(["dead", "replay", &letter.output.to_string()])
        .args(fleet.broker.flags(Role::Operator))
        .args(["--gateway", &fleet.gateway])
        .output()
        .unwrap();
    let told = String::from_utf8(replay.stdout).unwrap();
    assert!(replay.status.success(), "{told}");
    let job: JobId = told
        .split(|c: char| !c.is_ascii_hexdigit())
        .filter_map(|word| word.parse().ok())
        .find(|job| *job != letter.output.job)
        .expect("the new job is named");
    let url = format!("{}/v1/images/jobs/{job}", fleet.gateway);
    let done = until("the replayed job is done", || async {
        let answer = http::get(&url).await;
        (answer.body["status"] == "completed").then_some(answer.body)
    })
    .await;
    assert_eq!(done["outputs"][0]["seed"], json!(7));
    assert_eq!(fleet.bus.dead_letters().await.unwrap(), []);
    let calls = fleet
        .counter(Role::ArBatcher, "fresco_ar_engine_calls")
        .await;
    assert_eq!(calls, 1, "the prior tokens were in the letter");
    // The old output has its result, and keeps it.
    let old = fleet.bus.result(letter.output).await.unwrap().unwrap();
    assert_eq!(old.outcome.unwrap_err().code, ErrorCode::AttemptsExhausted);
}

/// Restarts each denoiser that dies, as a supervisor does, until the answer is there.
async fn supervised(fleet: &mut Fleet, mut job: JoinSet<Answer>) -> (Answer, usize) {
    let mut deaths = 0;
    loop {
        tokio::select! {
            answer = job.join_next() => return (answer.unwrap().unwrap(), deaths),
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        for index in 0..fleet.denoisers.len() {
            if fleet.denoisers[index].ended().is_some() {
                deaths += 1;
                fleet.add_denoiser(&format!("again-{deaths}"));
                fleet.denoisers.swap_remove(index);
                break;
            }
        }
    }
}

#[tokio::test]
async fn a_prompt_that_kills_its_workers_does_so_three_times_and_no_more_a02() {
    let mut fleet = Fleet::replay(3, QUICK).await;
    fleet.script(&[poison(FaultStage::Denoise, Fault::Abort)]);
    let job = in_background(&fleet, vec![request("a poison", 4)]);
    let (answer, deaths) = supervised(&mut fleet, job).await;
    assert_eq!(answer.error().0, "attempts_exhausted");
    assert_eq!(deaths, 3);
    fleet.until_idle(3).await;
    let good = http::generate(&fleet.gateway, &request("a fox", 4)).await;
    assert_eq!(good.data().len(), 1);
}

#[tokio::test]
async fn a_prompt_that_kills_its_batcher_costs_its_companions_one_batch() {
    let fleet = Fleet::replay(1, QUICK).await;
    batcher_killed_by(fleet, Fault::Abort).await;
}

#[tokio::test]
async fn a_prompt_that_breaks_the_ar_engine_costs_its_companions_one_batch() {
    let fleet = Fleet::replay(1, QUICK).await;
    batcher_killed_by(fleet, Fault::Panic).await;
}

/// A device that hangs is noticed by its silence.
const STALL: [&str; 2] = ["--stall-max-s", "1"];

#[tokio::test]
async fn a_prompt_that_hangs_the_ar_engine_costs_its_companions_one_batch() {
    let fleet = Fleet::replay_with(1, QUICK, &STALL).await;
    batcher_killed_by(fleet, Fault::Hang).await;
}

#[tokio::test]
async fn a_prompt_that_hangs_its_denoisers_does_so_three_times_and_no_more() {
    let mut fleet = Fleet::replay_with(2, QUICK, &STALL).await;
    fleet.script(&[poison(FaultStage::Denoise, Fault::Hang)]);
    let job = in_background(&fleet, vec![request("a poison", 4)]);
    let (answer, _) = supervised(&mut fleet, job).await;
    assert_eq!(answer.error().0, "attempts_exhausted");
    let letter = fleet.bus.dead_letters().await.unwrap().remove(0);
    let counted = letter.attempts.iter().filter(|a| a.counts());
    assert_eq!(counted.count(), 3);
}

async fn batcher_killed_by(mut fleet: Fleet, fault: Fault) {
    fleet.script(&[poison(FaultStage::Prior, fault)]);
    let requests = ["a fox", "a poison", "an owl"].map(|prompt| request(prompt, 1));
    let mut jobs = in_background(&fleet, requests.to_vec());
    let (mut answers, mut deaths) = (Vec::new(), 0);
    while answers.len() < 3 {
        tokio::select! {
            Some(answer) = jobs.join_next() => answers.push(answer.unwrap()),
            () = tokio::time::sleep(Duration::from_millis(50)) => {}
        }
        if fleet.ar_batcher.ended().is_some() {
            deaths += 1;
            fleet.replace_ar_batcher();
        }
    }
    assert_eq!(deaths, 3);
    let failed: Vec<_> = answers
        .iter()
        .filter(|answer| !answer.status.is_success())
        .map(|answer| answer.error().0)
        .collect();
    assert_eq!(failed, ["attempts_exhausted"]);
}

#[tokio::test]
async fn a_worker_that_fails_at_everything_leaves_and_comes_back_healed_a67() {
    let mut fleet = Fleet::replay(1, QUICK).await;
    let own = fleet.folder().join("broken.json");
    let broken = r#"[{"prompt_contains": "", "stage": "denoise", "fault": "fail"}]"#;
    std::fs::write(&own, broken).unwrap();
    fleet.add_denoiser_with_faults("broken", &own);
    let process = fleet.denoisers[1].id();
    fleet.until_idle(2).await;

    let requests = (0..30).map(|i| request(&format!("fox {i}"), 4)).collect();
    let answers = in_background(&fleet, requests).join_all().await;
    assert!(answers.iter().all(|answer| answer.status.is_success()));
    let worker = async |state| {
        let workers = fleet.bus.workers().await.ok()?;
        let broken = workers
            .into_iter()
            .find(|worker| worker.process == process)?;
        (broken.state == state).then_some(broken)
    };
    let broken = until("it is out", || worker(WorkerState::Quarantined)).await;
    let why = broken.reason.unwrap();
    let address = broken.health_address.unwrap();
    let (status, text) = http::text(&format!("http://{address}/readyz"))
        .await
        .unwrap();
    assert_eq!(status.as_u16(), 503);
    assert!(text.contains("failed 3 times in a row"), "{text} {why}");

    std::fs::write(&own, "[]").unwrap();
    until("it is back", || worker(WorkerState::Idle)).await;
    let (status, _) = http::text(&format!("http://{address}/readyz"))
        .await
        .unwrap();
    assert_eq!(status.as_u16(), 200);
}
