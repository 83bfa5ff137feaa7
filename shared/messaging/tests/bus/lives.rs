use std::time::Duration;

use protocol::{AttemptOutcome, LifeEvent, OutputState, Refusal, WorkStage, WorkerId};
use tokio::task::JoinSet;

use crate::site::{Site, output, within};

fn started(worker: &str) -> LifeEvent {
    LifeEvent::Started {
        stage: WorkStage::Denoise,
        worker: worker.parse::<WorkerId>().expect("allowed characters"),
    }
}

#[tokio::test]
async fn a_life_is_moved_on_and_survives_the_brokers_end() {
    let mut site = Site::start().await;
    assert_eq!(site.bus.life(output(1)).await.unwrap(), None);
    for event in [LifeEvent::PriorStored, started("a")] {
        site.bus
            .advance(output(1), event, 5)
            .await
            .unwrap()
            .unwrap();
    }
    site.broker.stop();
    site.broker.start_again();
    // Said again by a worker that did not hear the answer: nothing changes, nothing is refused.
    let life = within("advanced", site.bus.advance(output(1), started("a"), 9)).await;
    let life = life.unwrap().unwrap();
    assert_eq!(life.state, OutputState::DenoiseRunning);
    assert_eq!((life.attempts.len(), life.attempts[0].started_at), (1, 5));
    assert_eq!(site.bus.life(output(1)).await.unwrap(), Some(life));
}

/// The broker confirms a life before it is on the disk.
#[tokio::test]
async fn what_a_killed_broker_forgot_of_a_life_is_written_anew() {
    let mut site = Site::start().await;
    let prior_stored = site.bus.advance(output(1), LifeEvent::PriorStored, 5);
    prior_stored.await.unwrap().unwrap();
    let known = site.bus.known_life(output(1)).await.unwrap();
    let known = site.bus.advance_known(&known, started("a"), 5).await;
    let known = known.unwrap().unwrap();
    site.broker.kill();
    site.broker.start_again();
    let given_back = LifeEvent::GivenBack {
        stage: WorkStage::Denoise,
        worker: "a".parse().unwrap(),
    };
    let advanced = within("answered", site.bus.advance_known(&known, given_back, 6)).await;
    // By what the worker knows, or refused by what the broker has; it goes on from either.
    match advanced.unwrap() {
        Ok(known) => assert_eq!(known.life(6).state, OutputState::DenoiseWaiting),
        Err(refusal) => assert_eq!(refusal, Refusal::NotHeld),
    }
    let life = site.bus.advance(output(1), started("b"), 9).await;
    let life = life.unwrap().unwrap();
    assert_eq!(life.state, OutputState::DenoiseRunning);
    assert_eq!(life.attempts.last().unwrap().worker, "b".parse().unwrap());
}

#[tokio::test]
async fn what_cannot_follow_is_refused_and_not_written_a32() {
    let site = Site::start().await;
    site.bus
        .advance(output(1), LifeEvent::PriorStored, 1)
        .await
        .unwrap()
        .unwrap();
    let before = site.bus.life(output(1)).await.unwrap();
    let refused = site
        .bus
        .advance(output(1), LifeEvent::Admitted, 2)
        .await
        .unwrap();
    assert_eq!(refused, Err(Refusal::PriorStored));
    assert_eq!(site.bus.life(output(1)).await.unwrap(), before);
}

#[tokio::test]
async fn a_life_that_an_operator_deleted_starts_again() {
    let site = Site::start().await;
    let prior_stored = || site.bus.advance(output(1), LifeEvent::PriorStored, 1);
    prior_stored().await.unwrap().unwrap();
    let bucket = site.raw().await.get_key_value("t-outputs").await.unwrap();
    // Leaves a marker under the key.
    bucket.delete(output(1).to_string()).await.unwrap();
    assert_eq!(site.bus.life(output(1)).await.unwrap(), None);
    let life = prior_stored().await.unwrap().unwrap();
    assert_eq!(life.state, OutputState::DenoiseWaiting);
    assert_eq!(site.bus.life(output(1)).await.unwrap(), Some(life));
}

#[tokio::test]
async fn of_many_workers_at_once_none_overwrites_another() {
    let site = Site::start().await;
    let mut workers = JoinSet::new();
    for number in 0..8 {
        let bus = site.bus.clone();
        workers.spawn(async move {
            let worker = format!("w{number}");
            bus.advance(output(1), started(&worker), 1)
                .await
                .unwrap()
                .unwrap();
        });
    }
    within("all have started", workers.join_all()).await;
    let life = site.bus.life(output(1)).await.unwrap().unwrap();
    let lost = |attempt: &&protocol::Attempt| attempt.outcome == Some(AttemptOutcome::Lost);
    assert_eq!(life.attempts.len(), 8);
    assert_eq!(life.attempts.iter().filter(lost).count(), 7);
}

#[tokio::test]
async fn an_event_waits_for_a_broker_that_restarts() {
    let mut site = Site::start().await;
    site.broker.kill();
    let bus = site.bus.clone();
    let advancing =
        JoinSet::from_iter([async move { bus.advance(output(1), started("a"), 1).await }]);
    tokio::time::sleep(Duration::from_millis(500)).await;
    site.broker.start_again();
    let advanced = within("advanced", advancing.join_all()).await.remove(0);
    assert!(advanced.unwrap().is_ok());
}

#[tokio::test]
async fn a_known_life_is_moved_on_and_one_that_is_out_of_date_is_found_out() {
    let site = Site::start().await;
    let untouched = site.bus.known_life(output(1)).await.unwrap();
    let advance = |known, event| site.bus.advance_known(known, event, 1);
    let stored = advance(&untouched, LifeEvent::PriorStored).await;
    let stored = stored.unwrap().unwrap();
    let running = advance(&stored, started("a")).await.unwrap().unwrap();
    assert_eq!(site.bus.known_life(output(1)).await.unwrap(), running);

    // Somebody who has not heard of "a" takes nothing away from its life.
    let second = advance(&stored, started("b")).await.unwrap().unwrap();
    let outcomes: Vec<_> = second.life(1).attempts;
    assert_eq!(outcomes.len(), 2);
    assert_eq!(outcomes[0].outcome, Some(AttemptOutcome::Lost));
    // And what could follow once is refused by what there is now.
    let refused = advance(&untouched, LifeEvent::Admitted).await.unwrap();
    assert_eq!(refused, Err(Refusal::PriorStored));
    // What could not follow once can follow now.
    let given_back = LifeEvent::GivenBack {
        stage: WorkStage::Denoise,
        worker: "b".parse().expect("allowed characters"),
    };
    let advanced = advance(&stored, given_back).await.unwrap().unwrap();
    assert_eq!(advanced.life(1).state, OutputState::DenoiseWaiting);
}

#[tokio::test]
async fn what_is_told_in_passing_overwrites_nothing() {
    let site = Site::start().await;
    let untouched = site.bus.known_life(output(1)).await.unwrap();
    let tell = |known| site.bus.advance_unchanged(known, LifeEvent::Admitted, 1);
    let told = tell(&untouched).await.unwrap().unwrap();
    assert_eq!(told.life(1).state, OutputState::ArWaiting);
    let running = site.bus.advance_known(&told, started("a"), 1).await;
    let running = running.unwrap().unwrap();
    // It would take a start for lost.
    assert_eq!(tell(&untouched).await.unwrap(), None);
    assert_eq!(site.bus.known_life(output(1)).await.unwrap(), running);
}
