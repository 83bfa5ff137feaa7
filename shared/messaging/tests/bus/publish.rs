use std::time::Duration;

use messaging::{Fence, PublishError};
use protocol::{
    ErrorCode, JobRecord, PriorityClass, Subject, encode, limits::PAYLOAD_BYTES_MAX,
    topology::Topology,
};
use tokio::time::{Instant, timeout};

use crate::site::{Site, ar_job, denoise_job, failure, output, picture, prefix, within};

#[tokio::test]
async fn a_message_published_twice_is_stored_once() {
    let site = Site::start().await;
    for _ in 0..2 {
        site.order(&ar_job(1)).await.unwrap();
        site.enqueue(&denoise_job(1)).await;
    }
    assert_eq!(
        (site.stored("t-AR").await, site.stored("t-DN").await),
        (1, 1)
    );
}

/// The name of the header, and how it names a tenant, are what versions of one deployment have to agree on.
#[tokio::test]
async fn whose_a_message_is_comes_with_it_each_time_and_need_not() {
    let site = Site::start().await;
    let (class, studio) = (PriorityClass::Standard, "studio".parse().unwrap());
    for (job, header, wanted) in [
        (1, Some("studio"), Some(&studio)),
        (2, None, None),
        (3, Some("No Name"), None),
    ] {
        let subject = site
            .bus
            .prefix()
            .subject(&Subject::Denoise(class, output(job)));
        let mut headers = async_nats::HeaderMap::new();
        if let Some(name) = header {
            headers.insert("Fresco-Tenant", name);
        }
        let (raw, payload) = (site.raw().await, encode(&denoise_job(job)).unwrap());
        #[expect(clippy::disallowed_methods, reason = "as other versions send it")]
        let sent = raw.publish_with_headers(subject, headers, payload.into());
        sent.await.unwrap().await.unwrap();
        let mut queue = site.queue().await;
        let delivery = within("delivered", queue.next()).await;
        assert_eq!(delivery.tenant.as_ref(), wanted, "{header:?}");
        delivery.lease.ack().await;
    }
    let job = denoise_job(4);
    let sent = site.bus.publish_denoise_job(class, Some(&studio), &job);
    sent.await.unwrap();
    let stored = site.raw().await.get_stream("t-DN").await.unwrap();
    let stored = stored.get_last_raw_message_by_subject(">").await.unwrap();
    let header = stored.headers.get("Fresco-Tenant").unwrap();
    assert_eq!(header.as_str(), "studio");
    let mut queue = site.queue().await;
    within("delivered", queue.next()).await.lease.nak(None);
    let again = within("delivered again", queue.next()).await;
    assert_eq!(again.tenant, Some(studio));
}

#[tokio::test]
async fn a_full_queue_refuses_and_keeps_what_it_has() {
    let mut topology = Topology::new(&prefix());
    topology.ar.messages_max = 2;
    let site = Site::with(topology).await;
    site.order(&ar_job(1)).await.unwrap();
    site.order(&ar_job(2)).await.unwrap();
    let error = site.order(&ar_job(3)).await.unwrap_err();
    assert!(matches!(error, PublishError::Full { .. }), "{error:?}");
    assert_eq!(error.code(), ErrorCode::QueueFull);
    // An accepted one is accepted still.
    site.order(&ar_job(2)).await.unwrap();
    assert_eq!(site.stored("t-AR").await, 2);
}

#[tokio::test]
async fn a_picture_larger_than_a_message_is_refused() {
    let site = Site::start().await;
    let error = site
        .bus
        .put_result(&picture(output(1), vec![0; PAYLOAD_BYTES_MAX]))
        .await
        .unwrap_err();
    assert!(matches!(error, PublishError::TooLarge { .. }), "{error:?}");
    assert_eq!(error.code(), ErrorCode::ImageTooLarge);
}

#[tokio::test]
async fn the_first_result_is_the_result() {
    let site = Site::start().await;
    let (first, second) = (picture(output(1), vec![1; 1_000]), failure(output(1)));
    assert!(!site.bus.has_result(output(1)).await.unwrap());
    assert_eq!(site.bus.put_result(&first).await.unwrap(), Fence::First);
    assert_eq!(site.bus.put_result(&second).await.unwrap(), Fence::Taken);
    assert_eq!(site.bus.put_result(&first).await.unwrap(), Fence::Taken);
    assert_eq!(site.bus.result(output(1)).await.unwrap(), Some(first));
    assert_eq!(site.bus.result(output(2)).await.unwrap(), None);
}

#[tokio::test]
async fn one_of_many_racing_results_wins() {
    let site = Site::start().await;
    let racers = (0..20).map(|_| async { site.bus.put_result(&failure(output(1))).await.unwrap() });
    let fences = futures::future::join_all(racers).await;
    assert_eq!(
        fences
            .iter()
            .filter(|fence| **fence == Fence::First)
            .count(),
        1
    );
}

#[tokio::test]
async fn a_full_results_stream_is_waited_for_and_not_taken_for_a_lost_race() {
    let mut topology = Topology::new(&prefix());
    topology.results.bytes_max = 1_000_000;
    topology.results.message_bytes_max = 1_000_000;
    let site = Site::with(topology).await;
    let (first, second) = (
        picture(output(1), vec![1; 700_000]),
        picture(output(2), vec![2; 700_000]),
    );
    assert_eq!(site.bus.put_result(&first).await.unwrap(), Fence::First);
    assert_eq!(site.bus.put_result(&first).await.unwrap(), Fence::Taken);
    let mut waiting = Box::pin(site.bus.put_result(&second));
    assert!(
        timeout(Duration::from_millis(500), &mut waiting)
            .await
            .is_err(),
        "there is no room"
    );
    site.raw()
        .await
        .get_stream("t-RES")
        .await
        .unwrap()
        .purge()
        .await
        .unwrap();
    assert_eq!(
        within("there is room", waiting).await.unwrap(),
        Fence::First
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn publishes_survive_a_killed_broker() {
    let mut site = Site::start().await;
    site.broker.kill();
    let bus = site.bus.clone();
    let publishing = site.tracker.spawn(async move {
        bus.publish_ar_job(protocol::PriorityClass::Standard, None, &ar_job(1))
            .await
            .unwrap();
        bus.put_result(&failure(output(1))).await.unwrap()
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let since = Instant::now();
    site.broker.start_again();
    assert_eq!(within("published", publishing).await.unwrap(), Fence::First);
    println!("published {:?} after the broker came back", since.elapsed());
    assert_eq!(
        (site.stored("t-AR").await, site.stored("t-RES").await),
        (1, 1)
    );
}

#[tokio::test]
async fn a_job_record_reads_back() {
    let site = Site::start().await;
    let job = ar_job(1);
    let record = JobRecord {
        job: job.job,
        outputs: job.outputs,
        size: job.size,
        format: job.format,
        denoise: job.denoise,
        accepted_at: 1,
        deadline_at: 2,
        tenant: None,
        trace_id: None,
    };
    assert_eq!(site.bus.job(record.job).await.unwrap(), None);
    site.bus.create_job(&record).await.unwrap();
    assert_eq!(site.bus.job(record.job).await.unwrap(), Some(record));
}
