use std::{collections::BTreeSet, time::Duration};

use messaging::{Claim, Ends, Fence, QueueDepth};
use protocol::{
    AttemptOutcome, DeadLetter, DeadMessage, DenoiseJob, IdempotencyKey, IdempotencyRecord, JobId,
    JobRecord, LifeEvent, OutputIndex, WorkStage,
};
use tokio_util::sync::CancellationToken;

use crate::site::{Site, ar_job, denoise_job, failure, output, picture, until, within};

#[tokio::test]
async fn the_queues_tell_what_waits_what_is_held_and_who_is_idle() {
    let site = Site::start().await;
    let depth = |queued, held, idle| QueueDepth { queued, held, idle };
    for job in 1..=3 {
        site.enqueue(&denoise_job(job)).await;
    }
    site.order(&ar_job(4)).await.unwrap();
    let mut queue = site.queue().await;
    let held = within("a message", queue.next()).await;
    let queues = site.bus.queues().await.unwrap();
    assert_eq!(queues.ar, depth(1, 0, 0));
    assert_eq!(queues.denoise, depth(2, 1, 0));
    held.lease.ack().await;
    for _ in 0..2 {
        within("a message", queue.next()).await.lease.ack().await;
    }
    let idle = async {
        tokio::select! {
            _ = queue.next() => panic!("nothing is left"),
            () = until("the worker is idle", || async {
                site.bus.queues().await.unwrap().denoise == depth(0, 0, 1)
            }) => {}
        }
    };
    idle.await;
}

#[tokio::test]
async fn a_message_is_queued_once_even_after_the_broker_forgot_its_id() {
    let mut site = Site::start().await;
    site.enqueue(&denoise_job(1)).await;
    site.broker.kill();
    site.broker.start_again();
    // The ids are gone with the process of a work queue; the subject is not free.
    site.enqueue(&denoise_job(1)).await;
    site.order(&ar_job(2)).await.unwrap();
    site.order(&ar_job(2)).await.unwrap();
    let queues = site.bus.queues().await.unwrap();
    assert_eq!((queues.ar.queued, queues.denoise.queued), (1, 1));
}

#[tokio::test]
async fn a_withdrawn_job_leaves_the_queues_and_no_other_does() {
    let site = Site::start().await;
    for job in 1..=2 {
        site.enqueue(&denoise_job(job)).await;
        site.order(&ar_job(job)).await.unwrap();
    }
    site.bus.withdraw(JobId::from_u128(1)).await.unwrap();
    let mut queue = site.queue().await;
    let left = within("the other", queue.next()).await;
    assert_eq!(crate::site::output_of(&left), output(2));
    left.lease.ack().await;
    let queues = site.bus.queues().await.unwrap();
    assert_eq!((queues.ar.queued, queues.denoise.queued), (1, 0));
}

#[tokio::test]
async fn outputs_with_a_result_are_known_without_reading_it() {
    let site = Site::start().await;
    let job = JobId::from_u128(1);
    assert_eq!(site.bus.ended_outputs(job).await.unwrap(), BTreeSet::new());
    let third = job.output(OutputIndex::new(2).unwrap());
    site.bus.put_result(&failure(output(1))).await.unwrap();
    site.bus
        .put_result(&picture(third, vec![0; 1_000_000]))
        .await
        .unwrap();
    site.bus.put_result(&failure(output(2))).await.unwrap();
    let ended: Vec<u8> = site
        .bus
        .ended_outputs(job)
        .await
        .unwrap()
        .into_iter()
        .map(OutputIndex::get)
        .collect();
    assert_eq!(ended, [0, 2]);
    assert!(site.bus.has_result(third).await.unwrap());
    assert!(!site.bus.has_result(output(3)).await.unwrap());
}

#[tokio::test]
async fn an_end_is_told_to_whoever_watches_the_output() {
    let site = Site::start().await;
    let ends = Ends::start(&site.bus, &site.tracker, CancellationToken::new())
        .await
        .unwrap();
    let (watch, other) = (ends.watch(output(1)), ends.watch(output(2)));
    let mut notices = ends.notices();
    site.bus.put_result(&failure(output(1))).await.unwrap();
    within("told", watch.ended()).await;
    assert!(!other.has_ended());
    // Ends that nobody watches are counted all the same.
    site.bus.put_result(&failure(output(3))).await.unwrap();
    let counted = notices.wait_for(|noticed| noticed.ends == 2);
    assert!(within("counted", counted).await.is_ok());
    // Whoever watches it meanwhile knows what the others know, and goes without taking theirs along.
    assert!(ends.watch(output(1)).has_ended());
    drop(ends.watch(output(2)));
    site.bus.put_result(&failure(output(2))).await.unwrap();
    within("told", other.ended()).await;
    // One that came before the first watch is remembered, and found by the sweep of those who were not there.
    drop(watch);
    assert!(ends.watch(output(1)).has_ended());
    let later = Ends::start(&site.bus, &site.tracker, CancellationToken::new());
    let late = later.await.unwrap().watch(output(1));
    assert!(!late.has_ended());
    within("found", late.ended()).await;
}

#[tokio::test]
async fn an_end_is_told_to_whoever_listens_for_one_output() {
    let site = Site::start().await;
    let end = site.bus.ended(output(1));
    tokio::pin!(end);
    // Another output of the same job, and another job.
    let index = protocol::OutputIndex::new(1).unwrap();
    for other in [output(1).job.output(index), output(2)] {
        site.bus.put_result(&failure(other)).await.unwrap();
    }
    let early = tokio::time::timeout(Duration::from_millis(300), &mut end).await;
    assert!(early.is_err(), "it has not ended");
    site.bus.put_result(&failure(output(1))).await.unwrap();
    within("told", end).await;
    // One that came before is found by a look.
    within("found", site.bus.ended(output(1))).await;
}

#[tokio::test]
async fn a_message_can_be_given_back_for_a_worker_that_cannot() {
    let site = Site::start().await;
    site.enqueue(&denoise_job(1)).await;
    let (mut dead, mut next) = (site.queue().await, site.queue().await);
    let held = within("a message", dead.next()).await;
    let waiting = next.next();
    tokio::pin!(waiting);
    let nothing = tokio::time::timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(nothing.is_err(), "it is held");
    assert!(site.bus.give_back(&held.lease.ack_subject()).await);
    let again = within("given back", waiting).await;
    assert_eq!(crate::site::output_of(&again), output(1));
    again.lease.ack().await;
}

pub(crate) fn record(job: u128) -> JobRecord {
    let ar = ar_job(job);
    JobRecord {
        job: ar.job,
        outputs: ar.outputs,
        size: ar.size,
        format: ar.format,
        denoise: ar.denoise,
        accepted_at: 1,
        deadline_at: 2,
        tenant: None,
        trace_id: None,
    }
}

#[tokio::test]
async fn a_key_stands_for_the_first_record_written_under_it() {
    let site = Site::start().await;
    let key: IdempotencyKey = "order 7/b".parse().unwrap();
    let claim = |job| IdempotencyRecord {
        request_digest: "d".to_owned(),
        record: record(job),
    };
    assert_eq!(
        site.bus.claim_key(&key, &claim(1)).await.unwrap(),
        Claim::New
    );
    let taken = Claim::Taken(Box::new(claim(1)));
    assert_eq!(site.bus.claim_key(&key, &claim(2)).await.unwrap(), taken);
    let other: IdempotencyKey = "order 7/c".parse().unwrap();
    assert_eq!(
        site.bus.claim_key(&other, &claim(2)).await.unwrap(),
        Claim::New
    );
}

#[tokio::test]
async fn a_key_that_an_operator_deleted_is_free() {
    let site = Site::start().await;
    let key: IdempotencyKey = "order 7/b".parse().unwrap();
    let claim = |job| IdempotencyRecord {
        request_digest: "d".to_owned(),
        record: record(job),
    };
    let bucket = site.raw().await.get_key_value("t-idempotency").await;
    let bucket = bucket.unwrap();
    for job in [1, 2] {
        let record = claim(job);
        let claimed = within("claimed", site.bus.claim_key(&key, &record)).await;
        assert_eq!(claimed.unwrap(), Claim::New);
        // Leaves a marker under the key.
        bucket.delete(key.entry()).await.unwrap();
        assert_eq!(site.bus.claimed(&key).await.unwrap(), None);
    }
    let claimed = site.bus.claim_key(&key, &claim(3)).await.unwrap();
    assert_eq!(claimed, Claim::New);
    let taken = Claim::Taken(Box::new(claim(3)));
    assert_eq!(site.bus.claim_key(&key, &claim(4)).await.unwrap(), taken);
}

#[tokio::test]
async fn a_removed_job_is_unknown_and_no_other_one() {
    let site = Site::start().await;
    for job in [1, 2] {
        site.bus.create_job(&record(job)).await.unwrap();
    }
    site.bus.remove_job(record(1).job).await.unwrap();
    assert_eq!(site.bus.job(record(1).job).await.unwrap(), None);
    assert_eq!(site.bus.job(record(2).job).await.unwrap(), Some(record(2)));
    assert_eq!(site.bus.create_job(&record(1)).await.unwrap(), Fence::First);
}

#[tokio::test]
async fn a_job_is_recorded_once_a37_a65() {
    let site = Site::start().await;
    assert_eq!(site.bus.create_job(&record(1)).await.unwrap(), Fence::First);
    assert_eq!(site.bus.create_job(&record(1)).await.unwrap(), Fence::Taken);
}

#[tokio::test]
async fn a_dead_letter_is_kept_until_it_is_dropped() {
    let site = Site::start().await;
    let started = LifeEvent::Started {
        stage: WorkStage::Denoise,
        worker: "a".parse().unwrap(),
    };
    let life = site
        .bus
        .advance(output(1), started, 1)
        .await
        .unwrap()
        .unwrap();
    let letter = DeadLetter::new(
        life,
        WorkStage::Denoise,
        DeadMessage::Denoise(denoise_job(1)),
        2,
    );
    for _ in 0..2 {
        site.bus.publish_dead_letter(&letter).await.unwrap();
    }
    assert_eq!(
        site.bus.dead_letters().await.unwrap(),
        std::slice::from_ref(&letter)
    );
    assert_eq!(
        site.bus.dead_letter(output(1)).await.unwrap(),
        Some(letter.clone())
    );
    assert_eq!(letter.attempts[0].outcome, None::<AttemptOutcome>);
    assert!(site.bus.drop_dead_letter(output(1)).await.unwrap());
    assert!(!site.bus.drop_dead_letter(output(1)).await.unwrap());
    assert_eq!(site.bus.dead_letters().await.unwrap(), []);
}

#[tokio::test]
async fn a_dead_workers_message_comes_again_although_another_job_was_withdrawn() {
    for broker_killed in [false, true] {
        a_dead_workers_message_comes_again(broker_killed).await;
    }
}

/// The order in which a purge made the server forget the first message: it lifted the ack floor, and the ack of the third
/// one lifted it over the first.
async fn a_dead_workers_message_comes_again(broker_killed: bool) {
    let mut site = Site::start().await;
    let mut held = Vec::new();
    for job in [1, 2, 3] {
        site.enqueue(&denoise_job(job)).await;
        let mut queue = site.queue().await;
        let delivery = within("a message", queue.next()).await;
        assert_eq!(crate::site::output_of(&delivery), output(job));
        held.push((queue, delivery.lease));
    }
    let [(mut one, dead), (_two, withdrawn), (_three, third)] = held.try_into().expect("three");
    dead.abandon();
    let withdrawing = site.bus.withdraw(output(2).job).await;
    withdrawing.expect("the broker runs");
    withdrawn.abandon();
    third.ack().await;
    if broker_killed {
        site.broker.kill();
        site.broker.start_again();
    }
    let again = within("it comes again", one.next()).await;
    assert_eq!(crate::site::output_of(&again), output(1));
    again.lease.ack().await;
}

#[tokio::test]
async fn a_withdrawn_job_leaves_nothing_in_the_queues_and_others_in_place() {
    let site = Site::start().await;
    for job in [1, 2] {
        site.enqueue(&denoise_job(job)).await;
    }
    let second = DenoiseJob {
        output: output(1).job.output(OutputIndex::new(1).unwrap()),
        ..denoise_job(1)
    };
    site.enqueue(&second).await;
    site.bus.withdraw(output(1).job).await.unwrap();
    // Nothing is there to take.
    site.bus.withdraw(output(1).job).await.unwrap();
    assert_eq!(site.bus.queues().await.unwrap().denoise.queued, 1);
    let mut queue = site.queue().await;
    let left = within("the other job's", queue.next()).await;
    assert_eq!(crate::site::output_of(&left), output(2));
    left.lease.ack().await;
}
