use std::time::Duration;

use futures::StreamExt;
use messaging::Results;
use protocol::{JobId, OutputIndex, Progress, Stage, topology::Topology};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::site::{Site, failure, output, picture, prefix, until, within};

async fn listen(site: &Site) -> Results {
    Results::start(&site.bus, &site.tracker, CancellationToken::new())
        .await
        .expect("the bus is connected")
}

#[tokio::test]
async fn each_output_comes_once_and_then_the_watch_ends_a29() {
    let site = Site::start().await;
    let results = listen(&site).await;
    let job = JobId::from_u128(1);
    let mut watch = results.watch(job, 3).unwrap();
    let mut times = Vec::new();
    for index in [2, 0, 1] {
        let output = job.output(OutputIndex::new(index).unwrap());
        let since = Instant::now();
        site.bus
            .put_result(&picture(output, vec![index; 100_000]))
            .await
            .unwrap();
        site.bus.put_result(&failure(output)).await.unwrap();
        let result = within("the result", watch.next()).await.unwrap();
        times.push(since.elapsed());
        assert_eq!(result, picture(output, vec![index; 100_000]));
    }
    println!("result stored → in hand: {times:?}");
    assert!(within("the end", watch.next()).await.is_none());
}

#[tokio::test]
async fn two_watches_of_one_job_both_get_it() {
    let site = Site::start().await;
    let results = listen(&site).await;
    let (mut one, mut two) = (
        results.watch(output(1).job, 1).unwrap(),
        results.watch(output(1).job, 1).unwrap(),
    );
    site.bus.put_result(&failure(output(1))).await.unwrap();
    assert_eq!(within("one", one.next()).await, Some(failure(output(1))));
    assert_eq!(within("two", two.next()).await, Some(failure(output(1))));
}

#[tokio::test]
async fn a_result_stored_before_the_watch_is_found() {
    let site = Site::start().await;
    let results = listen(&site).await;
    site.bus.put_result(&failure(output(1))).await.unwrap();
    let mut watch = results.watch(output(1).job, 1).unwrap();
    assert!(within("the result", watch.next()).await.is_some());
}

#[tokio::test]
async fn a_result_without_a_notice_is_found_by_the_sweep() {
    let mut topology = Topology::new(&prefix());
    topology.results.announce = None;
    let site = Site::with(topology).await;
    let results = listen(&site).await;
    let mut watch = results.watch(output(1).job, 1).unwrap();
    // The look at the start is over once this later job's result is there.
    site.bus.put_result(&failure(output(2))).await.unwrap();
    let mut later = results.watch(output(2).job, 1).unwrap();
    within("the later job", later.next()).await;
    let since = Instant::now();
    site.bus.put_result(&failure(output(1))).await.unwrap();
    assert!(within("the result", watch.next()).await.is_some());
    println!("found by the sweep after {:?}", since.elapsed());
    assert!(since.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn what_has_not_ended_is_not_fetched() {
    let mut topology = Topology::new(&prefix());
    topology.results.announce = None;
    let site = Site::with(topology).await;
    let raw = site.raw().await.client();
    let mut fetches = raw.subscribe("$JS.API.DIRECT.GET.t-RES.>").await.unwrap();
    raw.flush().await.unwrap();
    let results = listen(&site).await;
    let job = JobId::from_u128(1);
    let mut watch = results.watch(job, 10).unwrap();
    // The look at the start is over once this later job's result is there.
    site.bus.put_result(&failure(output(2))).await.unwrap();
    let mut later = results.watch(output(2).job, 1).unwrap();
    within("the later job", later.next()).await;
    let ended = job.output(OutputIndex::new(3).unwrap());
    site.bus.put_result(&failure(ended)).await.unwrap();
    let result = within("the result", watch.next()).await;
    assert_eq!(result, Some(failure(ended)));
    // Behind this answer, the broker has told everything before it.
    raw.request("$JS.API.INFO", "".into()).await.unwrap();
    fetches.unsubscribe().await.unwrap();
    assert_eq!(fetches.count().await, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_outlives_a_killed_broker() {
    let mut site = Site::start().await;
    let results = listen(&site).await;
    let job = JobId::from_u128(1);
    let mut watch = results.watch(job, 2).unwrap();
    let [first, second] = [0, 1].map(|index| job.output(OutputIndex::new(index).unwrap()));
    site.bus.put_result(&failure(first)).await.unwrap();
    within("the first", watch.next()).await.unwrap();
    site.broker.kill();
    let bus = site.bus.clone();
    let storing = site
        .tracker
        .spawn(async move { bus.put_result(&failure(second)).await });
    site.broker.start_again();
    let since = Instant::now();
    assert_eq!(
        within("the second", watch.next()).await,
        Some(failure(second))
    );
    println!("result {:?} after the broker came back", since.elapsed());
    storing.await.unwrap().unwrap();
    assert!(within("the end", watch.next()).await.is_none());
}

#[tokio::test]
async fn an_unreadable_result_ends_its_output() {
    let site = Site::start().await;
    let results = listen(&site).await;
    let mut watch = results.watch(output(1).job, 1).unwrap();
    let subject = format!("t.res.{}.0", output(1).job);
    site.raw()
        .await
        .client()
        .request(subject, "not ours".into())
        .await
        .unwrap();
    let result = within("an answer", watch.next()).await.unwrap();
    // Whoever looks later finds the same.
    let stored = site.bus.result(output(1)).await.unwrap().unwrap();
    for result in [result, stored] {
        let code = result.outcome.unwrap_err().code;
        assert_eq!(code, protocol::ErrorCode::MessageInvalid);
    }
}

#[tokio::test]
async fn the_latest_progress_of_each_output_is_seen() {
    let site = Site::start().await;
    let results = listen(&site).await;
    let watch = results.watch(output(1).job, 1).unwrap();
    let mut progress = watch.progress();
    for step in 1..=3 {
        site.bus
            .report_progress(&Progress {
                output: output(1),
                stage: Stage::Denoise,
                step,
                steps: 3,
            })
            .await;
    }
    let last = progress.wait_for(|all| {
        all.get(&output(1).index)
            .is_some_and(|progress| progress.step == 3)
    });
    within("the last step", last).await.unwrap();
}

#[tokio::test]
async fn no_more_jobs_are_watched_than_the_limit() {
    let site = Site::start().await;
    let results = listen(&site).await;
    let watches: Vec<_> = (0..messaging::WATCHES_MAX as u128)
        .map(|job| results.watch(JobId::from_u128(job), 1).unwrap())
        .collect();
    assert!(results.watch(JobId::from_u128(9_999), 1).is_err());
    drop(watches);
    crate::site::until("there is room again", || async {
        results.watch(JobId::from_u128(1), 1).is_ok()
    })
    .await;
}

#[tokio::test]
async fn the_pictures_of_the_whole_deployment_are_counted_and_no_errors() {
    let site = Site::start().await;
    let results = listen(&site).await;
    // Nobody here waits for any of them.
    for job in [1, 2] {
        let painted = picture(output(job), vec![1]);
        site.bus.put_result(&painted).await.unwrap();
        site.bus.put_result(&painted).await.unwrap();
        site.bus
            .put_result(&failure(output(job + 2)))
            .await
            .unwrap();
    }
    site.bus
        .put_result(&picture(output(5), vec![1]))
        .await
        .unwrap();
    // Notices come in order: behind the third picture everything else has been heard.
    until("three pictures", || async {
        results.pictures_announced() >= 3
    })
    .await;
    assert_eq!(results.pictures_announced(), 3);
}
