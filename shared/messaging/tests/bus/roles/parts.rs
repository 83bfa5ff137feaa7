//! Every role's part, from the first request to the last dead letter, with no more than its credential allows.

use std::time::Duration;

use messaging::{Bus, Claim, Ends, Fence, Results, SystemEvent, SystemWatch};
use protocol::{
    DeadLetter, DeadMessage, ErrorCode, IdempotencyRecord, JobError, LifeEvent, PriorityClass,
    Progress, Role, Stage, WorkStage, WorkerId,
    topology::{Topology, TopologyOptions},
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Site, prefix,
    probe::{Probe, Verb},
};
use crate::{
    common::Broker,
    priors::prior,
    queues::record,
    site::{ar_job, denoise_job, output, output_of, picture, until, within},
};

fn started(stage: WorkStage, worker: &WorkerId) -> LifeEvent {
    LifeEvent::Started {
        stage,
        worker: worker.clone(),
    }
}

/// Takes a request in, as a gateway does.
async fn accept(gateway: &Bus) {
    gateway.verify(&Topology::new(&prefix())).await.unwrap();
    let key = "order 7".parse().unwrap();
    let claim = IdempotencyRecord {
        request_digest: "ab".repeat(32),
        record: record(1),
    };
    let claimed = gateway.claim_key(&key, &claim).await.unwrap();
    assert!(matches!(claimed, Claim::New));
    let claimed = gateway.claim_key(&key, &claim).await.unwrap();
    assert!(matches!(claimed, Claim::Taken(_)));
    until("a copy knows the key", || async {
        gateway.claimed(&key).await.unwrap().is_some()
    })
    .await;
    gateway.create_job(&record(1)).await.unwrap();
    let class = PriorityClass::Standard;
    gateway
        .publish_ar_job(class, None, &ar_job(1))
        .await
        .unwrap();
    assert!(gateway.is_ar_queued(record(1).job).await.unwrap());
    // A scrape, which looks at the oldest message too. In a cluster the consumer hears of it a moment after the stream.
    until("a scrape sees the oldest message", || async {
        let measured = gateway.measures().await.unwrap();
        let mut queues = measured.ar.iter();
        queues.any(|(_, queue)| queue.oldest_at.is_some())
    })
    .await;
}

/// Takes it, writes, and leaves an output for the denoisers.
async fn write(site: &Site, batcher: &Bus) {
    let topology = Topology::new(&prefix());
    batcher.verify(&topology).await.unwrap();
    let (worker, _presence) = site.appear(batcher, Role::ArBatcher);
    let ends = Ends::start(batcher, &site.tracker, CancellationToken::new());
    ends.await.unwrap();
    let mut queue = site.open(batcher, &topology.ar_consumers[1]).await;
    let delivery = within("the request", queue.next()).await;
    assert!(batcher.job(record(1).job).await.unwrap().is_some());
    let started = started(WorkStage::Prior, &worker);
    batcher
        .advance(output(1), started, 1)
        .await
        .unwrap()
        .unwrap();
    assert!(!batcher.has_result(output(1)).await.unwrap());
    assert_eq!(batcher.put_prior(&prior(7)).await.unwrap(), Fence::First);
    until("a copy knows the tokens", || async {
        batcher.cached_prior(prior(7).id).await.unwrap().is_some()
    })
    .await;
    batcher.report_progress(&progress(Stage::Prior)).await;
    let class = PriorityClass::Standard;
    batcher
        .publish_denoise_job(class, None, &denoise_job(1))
        .await
        .unwrap();
    let stored = batcher.advance(output(1), LifeEvent::PriorStored, 2);
    stored.await.unwrap().unwrap();
    delivery.lease.ack().await;
    within("it appears", seen(batcher, &worker)).await;
    assert!(
        batcher
            .ended_outputs(record(1).job)
            .await
            .unwrap()
            .is_empty()
    );
}

/// Takes the output, paints it, and gives up another one.
async fn paint(site: &Site, denoiser: &Bus) {
    let topology = Topology::new(&prefix());
    denoiser.verify(&topology).await.unwrap();
    let (worker, _presence) = site.appear(denoiser, Role::Denoiser);
    let mut queue = site.open(denoiser, &topology.denoise_consumer).await;
    let delivery = within("the output", queue.next()).await;
    assert!(!denoiser.has_result(output(1)).await.unwrap());
    let known = denoiser.known_life(output(1)).await.unwrap();
    let started = started(WorkStage::Denoise, &worker);
    denoiser
        .advance_known(&known, started, 3)
        .await
        .unwrap()
        .unwrap();
    denoiser.report_progress(&progress(Stage::Denoise)).await;
    denoiser.publish_dead_letter(&letter()).await.unwrap();
    let result = picture(output(1), vec![1; 100_000]);
    assert_eq!(denoiser.put_result(&result).await.unwrap(), Fence::First);
    within("its end is told", denoiser.ended(output(1))).await;
    delivery.lease.ack().await;
    within("it appears", seen(denoiser, &worker)).await;
    queue.close().await;
}

fn progress(stage: Stage) -> Progress {
    Progress {
        output: output(1),
        stage,
        step: 1,
        steps: 2,
    }
}

fn letter() -> DeadLetter {
    DeadLetter {
        output: output(9),
        stage: WorkStage::Denoise,
        reason: JobError::new(ErrorCode::DenoiseFailed, "no picture"),
        attempts: vec![],
        message: DeadMessage::Denoise(denoise_job(9)),
        dead_at: 1,
    }
}

async fn seen(bus: &Bus, worker: &WorkerId) {
    until("a worker is seen", || async {
        let workers = bus.workers().await.unwrap();
        workers.iter().any(|one| one.worker == *worker)
    })
    .await;
}

/// Looks at everything that a client may ask for, and clears a job away.
async fn answer(gateway: &Bus) {
    let job = record(1).job;
    assert!(gateway.result(output(1)).await.unwrap().is_some());
    assert!(gateway.job(job).await.unwrap().is_some());
    until("a copy knows the life", || async {
        gateway.life(output(1)).await.unwrap().is_some()
    })
    .await;
    assert!(gateway.prior(prior(7).id).await.unwrap().is_some());
    assert!(gateway.results_store().await.unwrap().is_some());
    assert_eq!(gateway.ended_outputs(job).await.unwrap().len(), 1);
    assert!(!gateway.workers().await.unwrap().is_empty());
    gateway.queues().await.unwrap();
    gateway
        .publish_ar_job(PriorityClass::Low, None, &ar_job(2))
        .await
        .unwrap();
    gateway.withdraw(ar_job(2).job).await.unwrap();
    assert!(!gateway.is_ar_queued(ar_job(2).job).await.unwrap());
    let ended = protocol::OutputResult {
        outcome: Err(JobError::new(ErrorCode::Cancelled, "cancelled")),
        ..picture(output(2), vec![1])
    };
    gateway.put_result(&ended).await.unwrap();
    gateway.remove_job(job).await.unwrap();
    assert!(gateway.job(job).await.unwrap().is_none());
}

/// Looks after what was given up.
async fn tend(operator: &Bus) {
    until("a copy knows the dead letter", || async {
        operator.dead_letters().await.unwrap().len() == 1
            && operator.dead_letter(output(9)).await.unwrap().is_some()
    })
    .await;
    operator.create_job(&record(1)).await.unwrap();
    let known = operator.job(record(1).job).await.unwrap();
    assert!(known.is_some() && operator.job(record(99).job).await.unwrap().is_none());
    let class = PriorityClass::Standard;
    operator
        .publish_ar_job(class, None, &ar_job(3))
        .await
        .unwrap();
    operator
        .publish_denoise_job(class, None, &denoise_job(9))
        .await
        .unwrap();
    assert!(operator.drop_dead_letter(output(9)).await.unwrap());
    operator.workers().await.unwrap();
    operator.queues().await.unwrap();
}

/// Gives back what a worker holds, and takes the worker off the list.
async fn give_back(site: &Site, watcher: &Bus, denoiser: &Bus) {
    let topology = Topology::new(&prefix());
    let kept = watcher.keep(&topology).await.unwrap();
    assert!(
        kept.created.is_empty() && kept.differing.is_empty(),
        "{kept:?}"
    );
    let (worker, presence) = site.appear(denoiser, Role::Denoiser);
    seen(watcher, &worker).await;
    let mut queue = site.open(denoiser, &topology.denoise_consumer).await;
    let held = within("held", queue.next()).await;
    assert_eq!(output_of(&held), output(9));
    assert!(watcher.give_back(&held.lease.ack_subject()).await);
    let mut other = site.open(denoiser, &topology.denoise_consumer).await;
    assert_eq!(within("it comes again", other.next()).await.delivered, 2);
    drop(presence);
    until("a copy that knows the worker is asked", || async {
        let buried = watcher.bury_worker(&worker).await.unwrap();
        buried.is_some_and(|last| last.worker == worker)
    })
    .await;
}

#[tokio::test]
async fn each_role_can_do_its_part_and_nothing_is_refused() {
    Box::pin(play(&Site::start(), 1)).await;
}

#[tokio::test]
async fn each_role_can_do_its_part_where_acks_have_their_longer_form() {
    Box::pin(play(&Site::start_with_longer_acks(), 1)).await;
}

#[tokio::test]
async fn each_role_can_do_its_part_on_a_cluster_of_three() {
    Box::pin(play(&Site::cluster(), 3)).await;
}

/// Every role's part, from the first request to the last dead letter.
async fn play(site: &Site, replicas: u8) {
    let urls = site.urls();
    let system_access = site.secrets.access("system");
    let system = SystemWatch::connect(&urls, &system_access, prefix()).await;
    let mut system = system.expect("the files are there");
    let first = within("the system account answers", system.next()).await;
    assert_eq!(first, Some(SystemEvent::Watching));

    let operator = site.connect(Role::Operator, "operator").await;
    let options = TopologyOptions {
        replicas: Some(replicas),
        ..TopologyOptions::default()
    };
    let topology = Topology::with(&prefix(), options);
    // A new cluster has no leader for its first seconds, on a busy machine for longer.
    let end = Instant::now() + Duration::from_secs(120);
    while let Err(error) = operator.provision(&topology).await {
        assert!(Instant::now() < end, "the streams cannot be made: {error}");
    }
    let came = within("it is told who came", system.next()).await;
    assert!(matches!(came, Some(SystemEvent::Connected(..))), "{came:?}");

    let gateway = site.connect(Role::Gateway, "gateway").await;
    let batcher = site.connect(Role::ArBatcher, "ar-batcher").await;
    let denoiser = site.connect(Role::Denoiser, "denoiser").await;
    let watcher = site.connect(Role::Operator, "watcher").await;
    let results = Results::start(&gateway, &site.tracker, CancellationToken::new()).await;
    let results = results.unwrap();
    let mut watch = results.watch(record(1).job, 1).unwrap();
    let _presence = site.appear(&gateway, Role::Gateway);

    accept(&gateway).await;
    write(site, &batcher).await;
    paint(site, &denoiser).await;
    let result = within("the result", watch.next()).await.unwrap();
    assert!(result.outcome.is_ok());
    assert!(!watch.progress().borrow().is_empty(), "progress was heard");
    assert!(batcher.result(output(1)).await.unwrap().is_some());
    answer(&gateway).await;
    tend(&operator).await;
    give_back(site, &watcher, &denoiser).await;

    // The server's log has every refusal in the order of their coming: this one is the first.
    let mut probe = Probe::connect(site, "denoiser").await;
    probe
        .violates(Verb::Publish, "fresco.ar.standard.sentinel")
        .await;
    let told = site.nodes[0].next_violation();
    assert!(told.contains("sentinel"), "{told}");
    let others = site.nodes.iter().skip(1).flat_map(Broker::violations);
    assert_eq!(others.collect::<Vec<_>>(), [""; 0]);
}
