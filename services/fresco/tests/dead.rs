//! `fresco dead`, `fresco workers` and `fresco nats` against a real nats-server.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

#[path = "../../../shared/messaging/tests/common/mod.rs"]
mod common;
mod worker;

use std::process::Stdio;

use common::Broker;
use messaging::Bus;
use protocol::{
    Attempt, AttemptOutcome, DeadLetter, DeadMessage, DenoiseJob, ErrorCode, JobError, JobId, Role,
    WorkStage, WorkerId, decode, topology::Topology,
};
use tokio::process::Command;
use worker::{connect, denoise_job, hold, join, until, within};

struct Site {
    broker: Broker,
    bus: Bus,
}

impl Site {
    async fn start() -> Self {
        let broker = Broker::start();
        let bus = connect(&broker.url()).await;
        let site = Self { broker, bus };
        assert!(site.fresco("nats init").await.is_ok());
        site
    }

    /// What it says, when it succeeds, and on stderr when not.
    async fn fresco(&self, command: &str) -> Result<String, (Option<i32>, String)> {
        let mut fresco = Command::new(env!("CARGO_BIN_EXE_fresco"));
        fresco.args(command.split_whitespace());
        fresco.args(["--nats-url", &self.broker.url(), "--prefix", "t"]);
        let output = fresco.stdin(Stdio::null()).output().await.unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err((output.status.code(), text(&output.stderr)))
        }
    }

    async fn bury(&self, job: u128) -> DeadLetter {
        let message = denoise_job(job);
        let error = JobError::new(ErrorCode::DenoiseFailed, "the device is on fire");
        let attempt = |outcome| Attempt {
            stage: WorkStage::Denoise,
            worker: WorkerId::generate(Role::Denoiser),
            started_at: 1_000,
            ended_at: Some(3_500),
            outcome: Some(outcome),
        };
        let letter = DeadLetter {
            output: message.output,
            stage: WorkStage::Denoise,
            reason: error.clone(),
            attempts: vec![
                attempt(AttemptOutcome::Lost),
                attempt(AttemptOutcome::GivenBack),
                attempt(AttemptOutcome::Failed(error)),
            ],
            message: DeadMessage::Denoise(message),
            dead_at: 4_000,
        };
        self.bus.publish_dead_letter(&letter).await.unwrap();
        letter
    }
}

#[tokio::test]
async fn a_dead_output_is_listed_shown_and_replayed_as_a_new_job() {
    let site = Site::start().await;
    let letter = site.bury(1).await;
    let output = letter.output.to_string();

    let list = site.fresco("dead list").await.unwrap();
    let line = list.lines().find(|line| line.starts_with(&output)).unwrap();
    assert!(
        line.contains("  denoise  2 ") && line.contains("on fire"),
        "{line}"
    );
    let json = site.fresco("dead list --json").await.unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["output"], output);
    let show = site.fresco(&format!("dead show {output}")).await.unwrap();
    assert_eq!(
        show.lines()
            .filter(|line| line.starts_with("attempt"))
            .count(),
        3,
        "{show}"
    );
    for text in [list, json.to_string(), show] {
        assert!(!text.contains("secret fox"), "the prompt is in {text}");
    }
    let show = site
        .fresco(&format!("dead show {output} --prompt"))
        .await
        .unwrap();
    assert!(show.contains("secret fox"), "{show}");

    let replay = format!("dead replay {output} --gateway http://127.0.0.1:9");
    let told = site.fresco(&replay).await.unwrap();
    let url = told.split_whitespace().last().unwrap();
    let job = url
        .strip_prefix("http://127.0.0.1:9/v1/images/jobs/")
        .unwrap();
    let job: JobId = job.parse().unwrap();
    assert!(
        site.bus.job(job).await.unwrap().is_some(),
        "a gateway can answer for it"
    );
    assert_eq!(site.bus.dead_letters().await.unwrap(), []);
    let (member, mut queue) = Box::pin(join(&site.broker.url())).await;
    let delivery = within("it is queued", hold(&member, &mut queue)).await;
    let queued: DenoiseJob = decode(&delivery.payload).unwrap();
    let DeadMessage::Denoise(dead) = letter.message else {
        unreachable!()
    };
    assert_eq!((queued.output.job, queued.seed), (job, dead.seed));
    assert!(
        queued.deadline_at > service::clock::unix_millis(),
        "it has time again"
    );

    // A worker tells of a change within a tenth of a second.
    until("the worker is shown with what it holds", || async {
        let workers = site.fresco("workers").await.unwrap();
        let lines: Vec<_> = workers.lines().collect();
        let shown = lines[0] == "AR queue:      0 queued, 0 held, 0 idle"
            && lines[1] == "denoise queue: 0 queued, 1 held, 0 idle"
            && lines[3].contains(&queued.output.to_string());
        shown.then_some(())
    })
    .await;
    let json = site.fresco("workers --json").await.unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["workers"][0]["worker"], member.id.to_string());
}

#[tokio::test]
async fn all_the_dead_are_replayed_or_dropped_at_once() {
    let site = Site::start().await;
    for job in 1..=3 {
        site.bury(job).await;
    }
    let output = denoise_job(2).output;
    site.fresco(&format!("dead drop {output}")).await.unwrap();
    assert_eq!(site.bus.dead_letters().await.unwrap().len(), 2);
    let told = site.fresco("dead replay --all").await.unwrap();
    assert_eq!(told.lines().count(), 2, "{told}");
    assert_eq!(site.bus.queues().await.unwrap().denoise.queued, 2);
    site.bury(4).await;
    site.fresco("dead drop --all").await.unwrap();
    assert_eq!(site.bus.dead_letters().await.unwrap(), []);
    assert_eq!(site.bus.queues().await.unwrap().denoise.queued, 2);
}

#[tokio::test]
async fn what_is_replayed_stays_its_tenants_also_when_its_record_is_gone() {
    let site = Site::start().await;
    let (_member, mut queue) = Box::pin(join(&site.broker.url())).await;
    let replayed = async |job: u128, flags: &str| {
        let output = denoise_job(job).output;
        let told = site
            .fresco(&format!("dead replay {output} {flags}"))
            .await?;
        let job: JobId = told.trim().rsplit('/').next().unwrap().parse().unwrap();
        let record = site.bus.job(job).await.unwrap().unwrap();
        Ok::<_, (Option<i32>, String)>(record.tenant.map(|tenant| tenant.to_string()))
    };
    let keep = async |letter: &DeadLetter| {
        let mut record = letter.revive(letter.output.job, 0).record;
        record.tenant = "studio".parse().ok();
        site.bus.create_job(&record).await.unwrap();
    };
    let studio = Ok(Some("studio".to_owned()));
    for (job, kept, flags, wanted) in [
        (1, false, "", Ok(None)),
        (2, false, "--tenant studio", studio.clone()),
        (3, true, "", studio.clone()),
        (4, true, "--tenant studio", studio),
    ] {
        let letter = site.bury(job).await;
        if kept {
            keep(&letter).await;
        }
        assert_eq!(replayed(job, flags).await, wanted, "{job} {flags}");
        // Its message too: whose the device's time is.
        let delivery = within("it is queued", queue.next()).await;
        let named = delivery.tenant.map(|tenant| tenant.to_string());
        assert_eq!(Ok(named), wanted, "{job} {flags}");
        delivery.lease.ack().await;
    }
    let letter = site.bury(5).await;
    keep(&letter).await;
    let (code, told) = replayed(5, "--tenant press").await.unwrap_err();
    assert!(
        code == Some(2) && told.contains("studio"),
        "{code:?} {told}"
    );
    assert_eq!(site.bus.dead_letters().await.unwrap(), [letter]);
}

#[tokio::test]
async fn an_output_that_is_not_dead_is_told() {
    let site = Site::start().await;
    let output = denoise_job(1).output;
    for command in ["show", "replay", "drop"] {
        let told = site
            .fresco(&format!("dead {command} {output}"))
            .await
            .unwrap_err();
        assert_eq!(
            told,
            (Some(1), format!("fresco: {output} is not among the dead\n"))
        );
    }
}

#[tokio::test]
async fn a_deployment_is_set_up_as_asked_and_checked_whole() {
    let site = Site::start().await;
    let told = site.fresco("nats check").await.unwrap();
    for name in [
        "stream t-DEAD",
        "bucket t-outputs",
        "bucket t-idempotency",
        "consumer t-AR/standard",
    ] {
        assert!(told.contains(name), "{name} is not in {told}");
    }
    let other = site
        .fresco("nats init --ack-wait-s 3 --result-ttl-s 90")
        .await
        .unwrap_err();
    assert!(other.1.contains("with other settings"), "{other:?}");

    assert!(other.1.contains("and 0 missing"), "{other:?}");

    let fresh = Broker::start();
    let site = Site {
        bus: connect(&fresh.url()).await,
        broker: fresh,
    };
    site.fresco("nats init --ack-wait-s 3 --result-ttl-s 90")
        .await
        .unwrap();
    site.fresco("nats check").await.unwrap();
    let results = site.bus.results_store().await.unwrap().unwrap();
    assert_eq!(results.age_max, std::time::Duration::from_secs(90));
    let alone = Broker::start();
    let site = Site {
        bus: connect(&alone.url()).await,
        broker: alone,
    };
    // One server cannot keep three copies, and says so.
    let refused = site.fresco("nats init --replicas 3").await.unwrap_err();
    assert!(refused.1.contains("stream t-AR"), "{refused:?}");
}

#[tokio::test]
async fn what_is_missing_is_made_beside_what_differs() {
    let broker = Broker::start();
    let bus = connect(&broker.url()).await;
    let mut other = Topology::new(&"t".parse().unwrap());
    other.ar.messages_max = 7;
    // How much room results have is a site's own, no difference.
    other.results.bytes_max = 20_000_000;
    other.priors.name.push_str("-of-others");
    bus.provision(&other).await.unwrap();
    let site = Site { broker, bus };
    let told = site.fresco("nats init").await.unwrap_err().1;
    assert!(
        told.contains("1 with other settings and 0 missing"),
        "{told}"
    );
}
