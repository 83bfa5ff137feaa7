use std::{collections::BTreeSet, time::Duration};

use messaging::WorkQueue;
use protocol::{Role, topology::Topology};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::site::{
    SHORT_ACK_WAIT, Site, connect, denoise_job, output, output_of, prefix, until, within,
};

/// More than the server's own lateness, less than a second one could hide in.
const LATE_MAX: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_worker_gets_one_message_at_a_time() {
    let site = Site::start().await;
    let mut queue = site.queue().await;
    for job in 1..=3 {
        site.enqueue(&denoise_job(job)).await;
    }
    for job in 1..=3 {
        let delivery = within("delivered", queue.next()).await;
        assert_eq!((output_of(&delivery), delivery.delivered), (output(job), 1));
        assert_eq!(
            site.consumer().await,
            (1, 0),
            "one held, no pull while busy"
        );
        delivery.lease.ack().await;
        assert_eq!(site.consumer().await.0, 0, "the ack reached the server");
    }
    assert_eq!(site.stored("t-DN").await, 0);
}

#[tokio::test]
async fn a_message_that_comes_while_busy_goes_to_another_worker() {
    let site = Site::start().await;
    let mut busy = site.queue().await;
    let waiting = async {
        // A frozen broker: the worker gives its pull up and asks again, twice, and the thawed broker answers both.
        site.broker.freeze();
        sleep(Duration::from_millis(6_500)).await;
        site.broker.thaw();
        until("two pulls wait", || async { site.consumer().await.1 == 2 }).await;
        site.enqueue(&denoise_job(1)).await;
    };
    let (first, ()) = tokio::join!(busy.next(), async {
        until("a pull waits", || async { site.consumer().await.1 == 1 }).await;
        waiting.await;
    });
    assert_eq!(
        site.consumer().await,
        (1, 1),
        "a stale pull of the busy worker waits"
    );
    let mut free = site.queue().await;
    let (second, since) = tokio::join!(free.next(), async {
        until("both pulls wait", || async { site.consumer().await.1 == 2 }).await;
        site.enqueue(&denoise_job(2)).await;
        Instant::now()
    });
    println!(
        "stored → busy worker → nak → other worker: {:?}",
        since.elapsed()
    );
    assert_eq!((output_of(&second), second.delivered), (output(2), 2));
    second.lease.ack().await;
    first.lease.ack().await;
    assert_eq!(site.stored("t-DN").await, 0);
}

#[tokio::test]
async fn progress_keeps_a_message_for_longer_than_the_ack_deadline_a60() {
    let site = Site::start().await;
    let (mut holder, mut other) = (site.queue().await, site.queue().await);
    site.enqueue(&denoise_job(1)).await;
    let held = within("delivered", holder.next()).await;
    let long = SHORT_ACK_WAIT * 3 + SHORT_ACK_WAIT / 2;
    assert!(
        timeout(long, other.next()).await.is_err(),
        "nobody else got it"
    );
    assert!(!held.lease.is_lost());
    assert_eq!(held.delivered, 1);
    held.lease.ack().await;
    assert_eq!(site.stored("t-DN").await, 0);
}

#[tokio::test]
async fn a_dropped_lease_gives_the_message_back_at_once() {
    let site = Site::start().await;
    let (mut first, mut second) = (site.queue().await, site.queue().await);
    site.enqueue(&denoise_job(1)).await;
    let dropped = within("delivered", first.next()).await;
    let since = Instant::now();
    drop(dropped);
    let again = within("delivered again", second.next()).await;
    println!("dropped lease → other worker: {:?}", since.elapsed());
    assert!(since.elapsed() < SHORT_ACK_WAIT / 2);
    assert_eq!(again.delivered, 2);
}

#[tokio::test]
async fn a_nak_with_a_delay_comes_back_after_it() {
    let site = Site::start().await;
    let mut queue = site.queue().await;
    site.enqueue(&denoise_job(1)).await;
    let since = Instant::now();
    within("delivered", queue.next())
        .await
        .lease
        .nak(Some(Duration::from_millis(700)));
    let again = within("delivered again", queue.next()).await;
    assert!(since.elapsed() >= Duration::from_millis(700) && since.elapsed() < SHORT_ACK_WAIT);
    again.lease.term("cannot be read");
    until("terminated", || async { site.stored("t-DN").await == 0 }).await;
}

#[tokio::test]
async fn a_dropped_next_loses_nothing() {
    const JOBS: u128 = 300;
    let site = Site::start().await;
    let mut queue = site.queue().await;
    let bus = site.bus.clone();
    let publishing = site.tracker.spawn(async move {
        for job in 0..JOBS {
            bus.publish_denoise_job(protocol::PriorityClass::Standard, None, &denoise_job(job))
                .await
                .unwrap();
        }
    });
    let (mut seen, mut turn, mut dropped, mut twice) = (BTreeSet::new(), 0, 0, 0);
    let since = Instant::now();
    while seen.len() < usize::try_from(JOBS).unwrap() {
        // Polls, not times: a timer is coarser than a delivery, and it is to be dropped at every stage of one.
        let polls = turn % 50;
        turn += 1;
        let patience = async {
            for _ in 0..polls {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            delivery = queue.next() => {
                twice += u64::from(delivery.delivered > 1);
                assert!(seen.insert(output_of(&delivery)), "delivered twice");
                delivery.lease.ack().await;
            }
            () = patience => dropped += 1,
        }
        assert!(
            since.elapsed() < Duration::from_secs(20),
            "{} of {JOBS} seen",
            seen.len()
        );
    }
    publishing.await.unwrap();
    println!(
        "{JOBS} messages, {dropped} dropped waits, {twice} redeliveries, {:?}",
        since.elapsed()
    );
    assert_eq!(site.stored("t-DN").await, 0);
    assert_eq!(twice, 0);
}

#[tokio::test]
async fn a_message_that_came_for_a_dropped_next_waits_and_then_goes_back() {
    let site = Site::start().await;
    let mut queue = site.queue().await;
    assert!(
        timeout(Duration::from_millis(50), queue.next())
            .await
            .is_err()
    );
    site.enqueue(&denoise_job(1)).await;
    until("held", || async { site.consumer().await.0 == 1 }).await;
    let taken = within("delivered", queue.next()).await;
    assert_eq!(taken.delivered, 1);
    taken.lease.ack().await;

    // The same, but the worker does not come back: another one gets it.
    assert!(
        timeout(Duration::from_millis(50), queue.next())
            .await
            .is_err()
    );
    site.enqueue(&denoise_job(2)).await;
    until("held", || async { site.consumer().await.0 == 1 }).await;
    let mut other = site.queue().await;
    let since = Instant::now();
    let second = within("delivered elsewhere", other.next()).await;
    assert!(since.elapsed() < Duration::from_millis(1_500));
    assert_eq!((output_of(&second), second.delivered), (output(2), 2));
    second.lease.ack().await;
    // What is left of it in the first queue is not handed out.
    site.enqueue(&denoise_job(3)).await;
    assert_eq!(
        output_of(&within("delivered", queue.next()).await),
        output(3)
    );
}

#[test]
fn a_dead_workers_message_is_redelivered_when_its_deadline_has_passed_a12() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    // A runtime of its own, whose end is the worker's: no nak, no goodbye.
    let doomed = tokio::runtime::Runtime::new().unwrap();
    let site = runtime.block_on(Site::start());
    let (url, spec) = (&site.broker, site.topology.denoise_consumer.clone());
    let held = doomed.block_on(async {
        let bus = connect(url, Role::Denoiser).await;
        let mut queue = WorkQueue::open(&bus, &spec, &TaskTracker::new())
            .await
            .unwrap();
        site.enqueue(&denoise_job(1)).await;
        let delivery = within("delivered", queue.next()).await;
        (delivery, queue, bus)
    });
    doomed.shutdown_background();
    let since = Instant::now();
    runtime.block_on(async {
        let mut other = site.queue().await;
        let again = within("redelivered", other.next()).await;
        println!(
            "dead worker → other worker: {:?} at an ack deadline of {SHORT_ACK_WAIT:?}",
            since.elapsed()
        );
        assert!(since.elapsed() < SHORT_ACK_WAIT + LATE_MAX);
        assert_eq!(again.delivered, 2);
        again.lease.ack().await;
    });
    // Dropped in a runtime-less world: nothing may panic.
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_broker_loses_nothing() {
    const JOBS: u128 = 60;
    let mut site = Site::start().await;
    for job in 0..JOBS {
        site.enqueue(&denoise_job(job)).await;
    }
    let (done, mut done_in) = tokio::sync::mpsc::channel(1_000);
    for _ in 0..3 {
        let mut queue = site.queue().await;
        let (bus, done) = (site.bus.clone(), done.clone());
        site.tracker.spawn(async move {
            loop {
                let delivery = queue.next().await;
                let output = output_of(&delivery);
                sleep(Duration::from_millis(50)).await;
                if !bus.has_result(output).await.unwrap_or(false)
                    && let Err(error) = bus.put_result(&crate::site::failure(output)).await
                {
                    panic!("{error:?}");
                }
                delivery.lease.ack().await;
                if done.send(output).await.is_err() {
                    return;
                }
            }
        });
    }
    let (mut seen, mut runs) = (BTreeSet::new(), 0);
    let mut kills = 0;
    let since = Instant::now();
    while seen.len() < usize::try_from(JOBS).unwrap() {
        seen.insert(within("worked on", done_in.recv()).await.unwrap());
        runs += 1;
        if (runs == 10 || runs == 30) && kills < 2 {
            kills += 1;
            site.broker.kill();
            site.broker.start_again();
        }
    }
    println!(
        "{JOBS} jobs, {kills} kills of the broker, {runs} runs, {:?}",
        since.elapsed()
    );
    until("queue is empty", || async {
        site.stored("t-DN").await == 0
    })
    .await;
    assert_eq!(site.stored("t-RES").await, u64::try_from(JOBS).unwrap());
}

#[tokio::test]
async fn a_frozen_broker_costs_the_lease() {
    let site = Site::start().await;
    let mut queue = site.queue().await;
    site.enqueue(&denoise_job(1)).await;
    let held = within("delivered", queue.next()).await;
    site.broker.freeze();
    let since = Instant::now();
    within("lost", held.lease.lost()).await;
    println!("frozen broker: lease lost after {:?}", since.elapsed());
    assert!(held.lease.is_lost());
    assert!(since.elapsed() <= SHORT_ACK_WAIT + LATE_MAX);
    site.broker.thaw();
    // The message comes again, to whoever asks; asked by its holder, it is adopted.
    assert!(
        timeout(SHORT_ACK_WAIT * 2, queue.next()).await.is_err(),
        "not a second time to the same worker"
    );
    assert!(!held.lease.is_lost(), "delivered to its holder again");
    held.lease.ack().await;
    until("acked", || async { site.stored("t-DN").await == 0 }).await;
}

#[tokio::test]
async fn a_message_of_a_stream_made_anew_is_not_taken_for_the_held_one() {
    let site = Site::start().await;
    let mut queue = site.queue().await;
    site.enqueue(&denoise_job(1)).await;
    let held = within("delivered", queue.next()).await;
    let raw = site.raw().await;
    raw.delete_stream("t-DN").await.unwrap();
    site.bus.provision(&site.topology).await.unwrap();
    // It gets the place in the stream that the held one had.
    site.enqueue(&denoise_job(2)).await;
    let next = within("the new one", queue.next()).await;
    assert_eq!(output_of(&next), output(2));
    assert!(held.lease.is_lost());
    held.lease.ack().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(site.consumer().await.0, 1, "the new one is still held");
    next.lease.ack().await;
    until("acked", || async { site.stored("t-DN").await == 0 }).await;
}

#[tokio::test]
async fn a_lost_lease_that_is_dropped_takes_nothing_from_the_next_worker() {
    let site = Site::start().await;
    let zombie_bus = connect(&site.broker, Role::Denoiser).await;
    let mut zombie = WorkQueue::open(&zombie_bus, &site.topology.denoise_consumer, &site.tracker)
        .await
        .unwrap();
    site.enqueue(&denoise_job(1)).await;
    let old = within("delivered", zombie.next()).await;
    site.broker.freeze();
    within("lost", old.lease.lost()).await;
    site.broker.thaw();
    let mut next = site.queue().await;
    let new = within("redelivered", next.next()).await;
    assert_eq!(new.delivered, 2);
    drop(old);
    zombie_bus.flush().await.unwrap();
    let mut third = site.queue().await;
    assert!(
        timeout(SHORT_ACK_WAIT * 2, third.next()).await.is_err(),
        "the new holder keeps it"
    );
    new.lease.ack().await;
    assert_eq!(site.stored("t-DN").await, 0);
}

#[tokio::test]
async fn a_closed_queue_gives_back_what_comes_late() {
    let site = Site::start().await;
    // Idle: its pull is outstanding while it closes.
    let mut closing = site.queue().await;
    assert!(
        timeout(Duration::from_millis(100), closing.next())
            .await
            .is_err()
    );
    let since = Instant::now();
    let closed = site.tracker.spawn(closing.close());
    tokio::task::yield_now().await;
    site.enqueue(&denoise_job(1)).await;
    let mut other = site.queue().await;
    let delivery = within("delivered", other.next()).await;
    assert!(since.elapsed() < SHORT_ACK_WAIT, "not by its deadline");
    within("closed", closed).await.unwrap();
    println!(
        "idle queue closed in {:?}, message came with delivery {}",
        since.elapsed(),
        delivery.delivered
    );
    assert!(since.elapsed() <= messaging::CLOSE_MAX + LATE_MAX);
    delivery.lease.ack().await;
    assert_eq!(site.stored("t-DN").await, 0);
}

#[tokio::test]
async fn an_idle_queue_closes_when_its_pull_has_run_out() {
    let site = Site::start().await;
    let mut closing = site.queue().await;
    assert!(
        timeout(Duration::from_millis(100), closing.next())
            .await
            .is_err()
    );
    let since = Instant::now();
    within("closed", closing.close()).await;
    println!("idle queue closed in {:?}", since.elapsed());
    assert!(since.elapsed() <= messaging::CLOSE_MAX);
    assert_eq!(site.consumer().await, (0, 0));
}

#[tokio::test]
async fn closing_naks_the_untaken_and_leaves_the_taken() {
    let site = Site::start().await;
    let mut closing = site.queue().await;
    site.enqueue(&denoise_job(1)).await;
    let taken = within("delivered", closing.next()).await;
    assert!(
        timeout(Duration::from_millis(50), closing.next())
            .await
            .is_err()
    );
    site.enqueue(&denoise_job(2)).await;
    until("both held", || async { site.consumer().await.0 == 2 }).await;
    let since = Instant::now();
    within("closed", closing.close()).await;
    println!("busy queue closed in {:?}", since.elapsed());
    let mut other = site.queue().await;
    let untaken = within("given back", other.next()).await;
    assert_eq!((output_of(&untaken), untaken.delivered), (output(2), 2));
    sleep(SHORT_ACK_WAIT + SHORT_ACK_WAIT / 2).await;
    assert!(!taken.lease.is_lost(), "progress goes on after the close");
    taken.lease.ack().await;
    untaken.lease.ack().await;
    assert_eq!(site.stored("t-DN").await, 0);
    site.tracker.close();
    drop(other);
    within("every loop has ended", site.tracker.wait()).await;
}

#[tokio::test]
async fn a_missing_consumer_is_an_error_at_once() {
    let site = Site::start().await;
    let mut spec = Topology::new(&prefix()).denoise_consumer;
    spec.name = "absent".to_owned();
    let error = WorkQueue::open(&site.bus, &spec, &site.tracker)
        .await
        .unwrap_err();
    assert_eq!(error.code(), protocol::ErrorCode::NotReady);
}

#[tokio::test]
async fn round_trips_are_quick() {
    const JOBS: u128 = 200;
    let site = Site::start().await;
    let mut queue = site.queue().await;
    let mut times = Vec::new();
    for job in 0..JOBS {
        let since = Instant::now();
        let (delivery, ()) = tokio::join!(queue.next(), async {
            let job = denoise_job(job);
            site.enqueue(&job).await;
        });
        delivery.lease.ack().await;
        times.push(since.elapsed());
    }
    times.sort();
    println!(
        "publish → delivered → acked: p50 {:?}, p99 {:?}",
        times[100], times[197]
    );
    assert!(times[100] < Duration::from_millis(500));
}
