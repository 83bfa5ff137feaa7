use protocol::PriorityClass;

use crate::site::{Site, ar_job, denoise_job, within};

#[tokio::test]
async fn the_broker_tells_what_waits_how_old_it_is_and_what_its_streams_hold() {
    let site = Site::start().await;
    let empty = site.bus.measures().await.unwrap();
    assert_eq!(empty.denoise.oldest_at, None);
    assert_eq!(empty.denoise.held_max, Some(4_096));
    assert_eq!(empty.dead.messages, 0);
    for job in 1..=3 {
        site.enqueue(&denoise_job(job)).await;
    }
    site.order(&ar_job(4)).await.unwrap();
    let first = site.bus.measures().await.unwrap();
    let mut queue = site.queue().await;
    let held = within("a message", queue.next()).await;
    let measures = site.bus.measures().await.unwrap();
    held.lease.ack().await;

    let depth = measures.denoise.depth;
    assert_eq!((depth.queued, depth.held), (2, 1));
    // The one that is held waits no more: what is the oldest now came later, or in the same millisecond.
    assert!(measures.denoise.oldest_at >= first.denoise.oldest_at);
    assert!(first.denoise.oldest_at.is_some());
    let queued = |class| {
        let of = measures.ar.iter().find(|(of, _)| *of == class);
        of.map(|(_, measure)| (measure.depth.queued, measure.oldest_at.is_some()))
    };
    assert_eq!(queued(PriorityClass::Standard), Some((1, true)));
    assert_eq!(queued(PriorityClass::High), Some((0, false)));
    let names: Vec<_> = measures.streams.iter().map(|stream| stream.name).collect();
    let all = [
        "AR",
        "DN",
        "RES",
        "jobs",
        "outputs",
        "idempotency",
        "priors",
        "workers",
        "DEAD",
    ];
    assert_eq!(names, all);
    let stream = measures.streams.iter().find(|stream| stream.name == "DN");
    let stream = stream.unwrap();
    assert!(stream.messages == 3 && stream.bytes > 0 && stream.bytes_max > Some(stream.bytes));
}
