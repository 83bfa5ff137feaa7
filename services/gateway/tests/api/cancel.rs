//! Cancels, in every state a job can be in.

use messaging::Fence;
use protocol::{ArJob, ErrorCode, LifeEvent, OutputId, Role, WorkStage, WorkerId};
use serde_json::json;
use service::clock::unix_millis;

use crate::{
    deployment::{Deployment, Reply, TestGateway, next_job, result},
    jobs::generate_in_background,
};

/// A job in a state, and what its cancel makes of it.
struct Case {
    state: &'static str,
    /// What workers did, to every output.
    events: fn() -> Vec<LifeEvent>,
    /// How every output ended, if it did.
    end: Option<Result<(), ErrorCode>>,
    status: &'static str,
}

const STAGES: [WorkStage; 2] = [WorkStage::Prior, WorkStage::Denoise];

fn started(stage: WorkStage) -> LifeEvent {
    let role = if stage == WorkStage::Prior {
        Role::ArBatcher
    } else {
        Role::Denoiser
    };
    LifeEvent::Started {
        stage,
        worker: WorkerId::generate(role),
    }
}

fn cases() -> Vec<Case> {
    let open = |state, events| Case {
        state,
        events,
        end: None,
        status: "cancelled",
    };
    let ended = |state, end, status| Case {
        state,
        events: Vec::new,
        end: Some(end),
        status,
    };
    vec![
        open("queued", Vec::new),
        open("ar_waiting", || vec![LifeEvent::Admitted]),
        open("ar_running", || {
            vec![LifeEvent::Admitted, started(STAGES[0])]
        }),
        open("denoise_waiting", || vec![LifeEvent::PriorStored]),
        open("denoise_running", || {
            vec![LifeEvent::PriorStored, started(STAGES[1])]
        }),
        ended("done", Ok(()), "completed"),
        ended("failed", Err(ErrorCode::DenoiseFailed), "failed"),
        ended("cancelled", Err(ErrorCode::Cancelled), "cancelled"),
        ended("expired", Err(ErrorCode::DeadlineExceeded), "expired"),
    ]
}

/// Puts a job of two outputs into the state of `case`, its message still queued.
async fn job_in(deployment: &Deployment, gateway: &TestGateway, case: &Case) -> ArJob {
    let mut queue = deployment.ar_queue().await;
    let body = json!({ "prompt": "p", "n": 2 });
    assert_eq!(generate_in_background(gateway, &body).await.status, 202);
    let (job, _delivery) = next_job(&mut queue).await;
    for output in &job.outputs {
        let id = job.job.output(output.index);
        for event in (case.events)() {
            let advanced = deployment.bus.advance(id, event, unix_millis()).await;
            advanced.unwrap().unwrap();
        }
        if let Some(end) = case.end {
            let end = result(&job, output.index, end.err());
            deployment.bus.put_result(&end).await.unwrap();
        }
    }
    job
}

fn told(reply: &Reply) -> (u16, String) {
    let status = reply.json()["status"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    (reply.status.as_u16(), status)
}

#[tokio::test]
async fn a_job_can_be_cancelled_in_every_state() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let other = deployment.ready_gateway(&[]).await;
    for case in cases() {
        let state = case.state;
        let job = job_in(&deployment, &gateway, &case).await;
        assert_eq!(deployment.queued(job.job).await, 1, "{state}");
        if case.end.is_none() {
            let before = other.job(job.job).await;
            assert_eq!(before["outputs"][1]["state"], state);
        }
        // Any gateway can; asking twice is asking once.
        for gateway in [&other, &gateway] {
            let wanted = (200, case.status.to_owned());
            assert_eq!(told(&gateway.cancel(job.job).await), wanted, "{state}");
        }
        assert_eq!(deployment.queued(job.job).await, 0, "{state}");
        for output in &job.outputs {
            let id: OutputId = job.job.output(output.index);
            let stored = deployment.bus.result(id).await.unwrap().unwrap();
            let code = stored.outcome.map(|_| ()).map_err(|error| error.code);
            let wanted = case.end.unwrap_or(Err(ErrorCode::Cancelled));
            assert_eq!(code, wanted, "{state}");
            // A worker that comes too late changes nothing.
            let late = result(&job, output.index, None);
            let fence = deployment.bus.put_result(&late).await.unwrap();
            assert_eq!(fence, Fence::Taken, "{state}");
        }
    }
    gateway.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn a_waiting_client_hears_of_the_cancel_and_a_finished_picture_stays() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let body = json!({ "prompt": "p", "n": 2 });
    let cancel = async {
        let (job, _delivery) = next_job(&mut queue).await;
        let painted = result(&job, job.outputs[1].index, None);
        deployment.bus.put_result(&painted).await.unwrap();
        let reply = gateway.cancel(job.job).await;
        assert_eq!(told(&reply), (200, "cancelled".to_owned()));
        let outputs = reply.json()["outputs"].clone();
        assert_eq!(
            (&outputs[0]["status"], &outputs[0]["url"]),
            (&json!("cancelled"), &json!(null))
        );
        let content = format!("/v1/images/{}-1/content", job.job);
        assert_eq!(outputs[1]["url"], format!("{}{content}", gateway.url));
        assert_eq!(gateway.get(&content).await.status, 200);
        job
    };
    let (reply, job) = tokio::join!(gateway.generate(&body), cancel);
    assert_eq!(
        (reply.status.as_u16(), reply.error_code().as_str()),
        (409, "cancelled")
    );
    assert_eq!(reply.headers["x-request-id"], job.job.to_string());
    let metrics = gateway.metrics().await;
    assert!(
        metrics.contains("fresco_jobs_cancelled_total 1\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("fresco_outputs_accepted_total 2\n"),
        "{metrics}"
    );
    assert!(
        metrics.contains("fresco_outputs_ended_total 2\n"),
        "{metrics}"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn a_cancel_that_races_with_a_picture_leaves_one_end() {
    let deployment = Deployment::start().await;
    let gateway = deployment.ready_gateway(&[]).await;
    let mut queue = deployment.ar_queue().await;
    let mut painted = 0;
    for _ in 0..40 {
        generate_in_background(&gateway, &json!({ "prompt": "p" })).await;
        let (job, delivery) = next_job(&mut queue).await;
        let result = result(&job, job.outputs[0].index, None);
        let (cancelled, fence) =
            tokio::join!(gateway.cancel(job.job), deployment.bus.put_result(&result));
        delivery.lease.ack().await;
        let won = fence.unwrap() == Fence::First;
        painted += usize::from(won);
        let wanted = if won { "completed" } else { "cancelled" };
        assert_eq!(told(&cancelled), (200, wanted.to_owned()));
        assert_eq!(gateway.job(job.job).await["status"], wanted);
    }
    println!("{painted} of 40 pictures won");
    gateway.stop().await;
}
