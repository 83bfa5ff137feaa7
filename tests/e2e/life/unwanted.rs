//! Work that nobody wants any more: cancelled, or past its deadline.

use std::time::{Duration, Instant};

use integration::fleet::{Fleet, until};
use protocol::{
    ErrorCode, JobError, JobId, OutputId, OutputIndex, OutputResult, OutputTimings, Role,
};
use replay::{ArTimes, Table};

use super::{QUICK, SLOW, STEP, in_background, request};

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
        .publish_ar_job(protocol::PriorityClass::Standard, None, &ar_job)
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
