//! What becomes of outputs that fail, of workers that fail, and of work that nobody wants any more.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use integration::{
    binary,
    fleet::{Fleet, REPLAY_ACK_WAIT, until},
    http::{self, Answer},
};
use protocol::{
    ErrorCode, JobError, JobId, OutputId, OutputIndex, OutputResult, OutputState, OutputTimings,
    Role, WorkStage, WorkerState,
};
use replay::{ArTimes, DenoiseTimes, Fault, FaultStage, Rule, Table};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// One step of [`SLOW`].
const STEP: Duration = Duration::from_millis(250);

const AR: ArTimes = ArTimes::new(&[(1, 22.0), (2, 24.0)], 258);

const QUICK: Table = Table {
    ar: AR,
    denoise: DenoiseTimes {
        step_ms: 5.0,
        decode_ms: 2.0,
    },
};

const SLOW: Table = Table {
    denoise: DenoiseTimes {
        step_ms: 250.0,
        decode_ms: 2.0,
    },
    ar: AR,
};

fn request(prompt: &str, steps: u32) -> Value {
    json!({"prompt": prompt, "size": "32x32", "seed": 7, "num_inference_steps": steps})
}

fn in_background(fleet: &Fleet, requests: Vec<Value>) -> JoinSet<Answer> {
    let asked = requests.into_iter().map(|request| {
        let gateway = fleet.gateway.clone();
        async move { http::generate(&gateway, &request).await }
    });
    asked.collect()
}

fn poison(stage: FaultStage, fault: Fault) -> Rule {
    Rule {
        prompt_contains: "poison".into(),
        stage,
        fault,
    }
}

/// As a gateway ends an output that its client does not want any more.
async fn cancel(fleet: &Fleet, output: OutputId) {
    let result = OutputResult {
        output,
        outcome: Err(JobError::new(ErrorCode::Cancelled, "cancelled")),
        seed: None,
        usage: None,
        prior_id: None,
        timings: OutputTimings::default(),
        worker: None,
    };
    fleet.bus.put_result(&result).await.unwrap();
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

#[tokio::test]
async fn a_cancelled_painting_frees_its_denoiser_within_a_step() {
    let fleet = Fleet::replay(1, SLOW).await;
    let jobs = in_background(&fleet, vec![request("a fox", 40)]);
    let (_, output) = fleet.until_painting().await;
    cancel(&fleet, output).await;
    let cancelled = Instant::now();
    fleet.until_idle(1).await;
    let free = cancelled.elapsed();
    assert!(
        free < STEP + Duration::from_millis(200),
        "free after {free:?}"
    );
    let answer = jobs.join_all().await.remove(0);
    assert_eq!(
        (answer.status.as_u16(), answer.error().0),
        (409, "cancelled")
    );
    let stopped = fleet
        .counter(Role::Denoiser, "fresco_outputs_stopped")
        .await;
    assert_eq!(stopped, 1);
    let queues = fleet.bus.queues().await.unwrap();
    assert_eq!((queues.denoise.held, queues.denoise.queued), (0, 0));
}

#[tokio::test]
async fn a_cancelled_row_is_withdrawn_and_a_batch_of_cancelled_rows_is_stopped_a17() {
    let slow_ar = Table {
        ar: ArTimes::new(&[(1, 4_000.0)], 258),
        ..QUICK
    };
    let fleet = Fleet::replay_writing(1, slow_ar, &["--slots-max", "1"]).await;
    let mut running = in_background(&fleet, vec![request("runs", 1)]);
    fleet.until_ar_runs().await;
    let waiting = in_background(&fleet, vec![request("waits", 1)]);
    let held = until("both are held", || async {
        let workers = fleet.bus.workers().await.ok()?;
        let batcher = workers.into_iter().find(|w| w.role == Role::ArBatcher)?;
        let mut held: Vec<_> = batcher.held.iter().map(|work| work.output).collect();
        held.sort();
        (held.len() == 2).then_some(held)
    })
    .await;
    // Ids are in the order of acceptance.
    cancel(&fleet, held[1]).await;
    let answer = waiting.join_all().await.remove(0);
    assert_eq!(answer.error().0, "cancelled");
    let cancelled = Instant::now();
    cancel(&fleet, held[0]).await;
    fleet.until_idle(1).await;
    let free = cancelled.elapsed();
    assert!(
        free < Duration::from_secs(1),
        "the engine was free after {free:?}"
    );
    assert_eq!(
        running.join_next().await.unwrap().unwrap().error().0,
        "cancelled"
    );
    let calls = fleet
        .counter(Role::ArBatcher, "fresco_ar_engine_calls")
        .await;
    assert_eq!(calls, 1, "the waiting row never ran");
    assert_eq!(
        fleet
            .counter(Role::Denoiser, "fresco_outputs_painted")
            .await,
        0
    );
}

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

#[tokio::test]
async fn work_without_a_gateway_ends_at_its_deadline_all_the_same() {
    let mut fleet = Fleet::replay(1, SLOW).await;
    let job: JobId = JobId::generate();
    let output = job.output(OutputIndex::FIRST);
    fleet.gateway_process.kill();
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap()
        .as_millis();
    let now = u64::try_from(now).unwrap();
    let ar_job = protocol::ArJob {
        job,
        prompt: "a fox".into(),
        outputs: vec![protocol::OutputRequest {
            index: OutputIndex::FIRST,
            seed: protocol::Seed::new(7).unwrap(),
        }],
        size: "32x32".parse().unwrap(),
        format: protocol::ImageFormat::Png,
        denoise: protocol::DenoiseParameters::new(400, 1.5).unwrap(),
        prior: None,
        accepted_at: now,
        deadline_at: now + 2_000,
    };
    fleet
        .bus
        .publish_ar_job(protocol::PriorityClass::Standard, &ar_job)
        .await
        .unwrap();
    let result = until("it has ended", || async {
        fleet.bus.result(output).await.ok()?
    })
    .await;
    assert_eq!(
        result.outcome.unwrap_err().code,
        ErrorCode::DeadlineExceeded
    );
    let late = result
        .timings
        .finished_at
        .saturating_sub(ar_job.deadline_at);
    assert!(late < 100, "{late} ms late");
    fleet.until_idle(1).await;
}
