//! The job object, field by field.

use protocol::{ErrorCode, JobError, LifeEvent, OutputTimings, PriorUsage, Role};
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{index, record};

const JOB: &str = "00000000000000000000000000000001";

fn ended(outcome: Result<(), ErrorCode>) -> Ended {
    Ended {
        outcome: outcome.map_err(|code| JobError::new(code, "text")),
        usage: Some(PriorUsage {
            prompt_tokens: 40,
            generated_tokens: 60,
            cached: false,
        }),
        prior_id: None,
        timings: OutputTimings {
            accepted_at: 10_000,
            finished_at: 11_215,
            ..OutputTimings::default()
        },
    }
}

/// The object of a job of which nothing is known but this.
fn object(record: &JobRecord, ended: &EndedByOutput, progress: &ProgressByOutput) -> Value {
    told(record, ended, progress, &LifeByOutput::new())
}

fn told(
    record: &JobRecord,
    ended: &EndedByOutput,
    progress: &ProgressByOutput,
    lives: &LifeByOutput,
) -> Value {
    let view = JobView {
        record,
        ended,
        progress,
        lives,
        base: "http://h",
        result_ttl: Duration::from_secs(60),
    };
    serde_json::to_value(JobAnswer::new(view)).expect("plain fields")
}

#[test]
fn a_job_tells_how_far_each_output_is() {
    let progress = Progress {
        output: record(3).job.output(index(1)),
        stage: Stage::Denoise,
        step: 3,
        steps: 30,
    };
    let progress = ProgressByOutput::from([(index(1), progress)]);
    let first = EndedByOutput::from([(index(0), ended(Ok(())))]);
    let job = object(&record(3), &first, &progress);
    assert_eq!(
        (&job["status"], &job["object"], &job["id"]),
        (&json!("in_progress"), &json!("image.job"), &json!(JOB))
    );
    assert_eq!(
        (&job["completed_at"], &job["response"], &job["error"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    let output = |i: u64, status: &str, state: &str| {
        json!({
            "id": format!("{JOB}-{i}"), "seed": 7 + i, "prior_id": null, "status": status, "state": state, "url": null,
            "stage": null, "step": null, "steps": null, "attempts": [], "error": null, "timings": null,
        })
    };
    let mut done = output(0, "completed", "done");
    done["url"] = json!(format!("http://h/v1/images/{JOB}-0/content"));
    done["timings"] = json!({
        "ar_wait_ms": null, "ar_run_ms": null, "denoise_wait_ms": null, "denoise_run_ms": null, "decode_run_ms": null,
        "total_ms": 1215,
    });
    let mut running = output(1, "in_progress", "queued");
    (running["stage"], running["step"], running["steps"]) = (json!("denoise"), json!(3), json!(30));
    let queued = output(2, "queued", "queued");
    assert_eq!(job["outputs"], json!([done, running, queued]));
}

#[test]
fn a_job_tells_what_was_tried() {
    let (record, worker) = (record(1), WorkerId::generate(Role::Denoiser));
    let output = record.job.output(index(0));
    let stage = WorkStage::Denoise;
    let error = JobError::new(ErrorCode::DenoiseFailed, "out of memory");
    let events = [
        (LifeEvent::PriorStored, 11_000),
        (
            LifeEvent::Started {
                stage,
                worker: worker.clone(),
            },
            11_500,
        ),
        (
            LifeEvent::AttemptFailed {
                stage,
                worker: worker.clone(),
                error,
            },
            12_250,
        ),
        (
            LifeEvent::Started {
                stage,
                worker: worker.clone(),
            },
            13_000,
        ),
    ];
    let life = events
        .into_iter()
        .fold(OutputLife::queued(output, 10_000), |life, (event, at)| {
            life.apply(event, at).expect("in order")
        });
    let lives = LifeByOutput::from([(index(0), life)]);
    let job = told(
        &record,
        &EndedByOutput::new(),
        &ProgressByOutput::new(),
        &lives,
    );
    assert_eq!(job["status"], "in_progress");
    assert_eq!(job["outputs"][0]["state"], "denoise_running");
    let error = json!({
        "message": "out of memory", "type": "server_error", "param": null, "code": "denoise_failed",
    });
    let wanted = json!([
        { "stage": "denoise", "worker": worker, "started_at": 11.5, "ended_at": 12.25, "outcome": "failed", "error": error },
        { "stage": "denoise", "worker": worker, "started_at": 13.0, "ended_at": null, "outcome": null, "error": null },
    ]);
    assert_eq!(job["outputs"][0]["attempts"], wanted);
}

#[test]
fn a_job_is_what_its_outputs_are() {
    use OutputState::{ArWaiting, Cancelled, DenoiseRunning, Done, Expired, Failed, Queued};
    let cases: [(&[OutputState], Status); 11] = [
        (&[Queued, Queued], Status::Queued),
        (&[Queued, ArWaiting], Status::InProgress),
        (&[Queued, DenoiseRunning], Status::InProgress),
        (&[Queued, Done], Status::InProgress),
        (&[Failed, DenoiseRunning], Status::InProgress),
        (&[Cancelled, Queued], Status::InProgress),
        (&[Done, Done], Status::Completed),
        (&[Done, Failed], Status::Failed),
        (&[Done, Cancelled], Status::Cancelled),
        (&[Cancelled, Expired], Status::Expired),
        (&[Cancelled, Expired, Failed], Status::Failed),
    ];
    for (states, wanted) in cases {
        let started = states.iter().any(|state| *state != Queued);
        assert_eq!(overall(states, started), wanted, "{states:?}");
    }
}

#[test]
fn a_finished_job_holds_its_answer_and_a_failed_one_its_error() {
    let none = ProgressByOutput::new();
    let one = EndedByOutput::from([(index(0), ended(Ok(())))]);
    let job = object(&record(1), &one, &none);
    assert_eq!(
        (&job["status"], &job["completed_at"], &job["expires_at"]),
        (&json!("completed"), &json!(11), &json!(71))
    );
    assert_eq!(
        job["response"]["data"][0]["url"],
        format!("http://h/v1/images/{JOB}-0/content")
    );
    let failed = EndedByOutput::from([(index(0), ended(Err(ErrorCode::DeadlineExceeded)))]);
    let job = object(&record(1), &failed, &none);
    assert_eq!(
        (&job["status"], &job["response"]),
        (&json!("expired"), &Value::Null)
    );
    let error = json!({ "message": "text", "type": "server_error", "param": null, "code": "deadline_exceeded" });
    assert_eq!(
        (&job["error"], &job["outputs"][0]["error"]),
        (&error, &error)
    );
}

#[test]
fn a_cancelled_job_still_tells_of_the_pictures_it_has() {
    let both = EndedByOutput::from([
        (index(0), ended(Err(ErrorCode::Cancelled))),
        (index(1), ended(Ok(()))),
    ]);
    let job = object(&record(2), &both, &ProgressByOutput::new());
    assert_eq!(
        (&job["status"], &job["error"]["code"], &job["response"]),
        (&json!("cancelled"), &json!("cancelled"), &Value::Null)
    );
    assert_eq!(job["outputs"][0]["url"], Value::Null);
    assert_eq!(
        job["outputs"][1]["url"],
        format!("http://h/v1/images/{JOB}-1/content")
    );
}
