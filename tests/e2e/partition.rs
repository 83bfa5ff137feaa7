//! Hosts that lose each other for longer than a worker may be silent, and find each other again: nothing is lost, each
//! output has one result, and whoever was away works again by itself. Network namespaces are the hosts, so this needs
//! root; where there can be none it says so and tests nothing, but where they are required: `.ci/run` does that wherever
//! namespaces can be made.

use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use integration::{
    api::Api,
    chaos::pauses::now_ms,
    fleet::{START_WITHIN, until},
    hosts::{AR, BROKER, BROKERS, Cut, GATEWAY, PAINT_A, PAINT_B, Site},
};
use protocol::{WorkerPresence, WorkerState, limits::PRESENCE_TTL};
use reqwest::StatusCode;
use serde_json::json;
use tokio::time::sleep;

/// Longer than a lease, shorter than it takes to find out that a connection is dead: those there are go on afterwards.
const SHORT: Duration = Duration::from_secs(8);

/// Long enough for both ends to give their connection up (12 s).
const LONG: Duration = Duration::from_secs(20);

/// From the end of a cut until each worker that was cut off has new work.
const BACK_WITHIN: Duration = Duration::from_secs(15);

/// The same where a broker was cut off too, and has to find the other two before.
const BACK_WITH_BROKER_WITHIN: Duration = Duration::from_secs(30);

/// What was measured, or why nothing was: nextest shows it.
#[expect(
    clippy::print_stdout,
    reason = "a bound is better known than only held"
)]
fn say(what: &str) {
    println!("{what}");
}

/// Read by clap like every other variable.
#[derive(Parser)]
struct Wanted {
    #[arg(long, env = "FRESCO_TEST_HOSTS", default_value = "if-possible")]
    hosts: Hosts,
}

#[derive(Clone, Copy, ValueEnum)]
enum Hosts {
    IfPossible,
    Required,
}

impl Hosts {
    fn wanted() -> Self {
        let wanted = Wanted::try_parse_from(["tests"]).unwrap_or_else(|error| panic!("{error}"));
        wanted.hosts
    }

    /// What was started, or nothing where it need not be.
    fn take<T>(self, started: Result<T, String>) -> Option<T> {
        match (self, started) {
            (_, Ok(site)) => Some(site),
            (Self::Required, Err(why)) => panic!("hosts are required: {why}"),
            (Self::IfPossible, Err(why)) => {
                say(&format!("SKIPPED: there can be no hosts here: {why}"));
                None
            }
        }
    }
}

async fn site(painters: &[&'static str]) -> Option<Site> {
    site_on(&[BROKER], painters).await
}

async fn site_on(brokers: &[&'static str], painters: &[&'static str]) -> Option<Site> {
    Hosts::wanted().take(Site::start(brokers, painters).await)
}

fn holds_since(worker: &WorkerPresence, at_ms: i128) -> bool {
    worker
        .held
        .iter()
        .any(|work| i128::from(work.since) > at_ms)
}

/// Waits until each worker of `host` is busy with something that it took after `at_ms`.
async fn until_new_work(site: &Site, host: &str, at_ms: i128) {
    let mut waiting = site.processes(host);
    let deadline = Instant::now() + START_WITHIN;
    while !waiting.is_empty() {
        assert!(
            Instant::now() < deadline,
            "{waiting:?} of {host} got no new work"
        );
        let workers = site.workers().await.unwrap_or_default();
        let busy = |worker: &&WorkerPresence| holds_since(worker, at_ms);
        let busy: Vec<_> = workers
            .iter()
            .filter(busy)
            .map(|worker| worker.process)
            .collect();
        waiting.retain(|process| !busy.contains(process));
        sleep(Duration::from_millis(20)).await;
    }
}

/// Cuts `host` off while all of it work, for so long.
async fn cut(site: &Site, host: &str, how: Cut, lasts: Duration) {
    until_new_work(site, host, 0).await;
    site.network.cut(host, how);
    let start = Instant::now();
    if lasts > PRESENCE_TTL {
        until_unlisted(site, host).await;
        let unlisted = start.elapsed();
        say(&format!(
            "{host}, {how:?}: off the list after {unlisted:.1?}"
        ));
    }
    sleep(lasts.saturating_sub(start.elapsed())).await;
    site.network.heal(host, how);
    let (healed, at_ms) = (Instant::now(), now_ms());
    until_new_work(site, host, at_ms).await;
    let back = healed.elapsed();
    say(&format!(
        "{host}, {how:?} for {lasts:?}: new work {back:.1?} after"
    ));
    assert!(back < BACK_WITHIN, "{back:?}");
}

/// What cannot be reached is no worker, and the others still are.
async fn until_unlisted(site: &Site, host: &str) {
    let gone = site.processes(host);
    let others = site.listed().len() - gone.len();
    until("it is taken off the list", || async {
        let listed = site.listed();
        (!gone.iter().any(|process| listed.contains_key(process))).then_some(())
    })
    .await;
    assert_eq!(site.listed().len(), others);
}

/// At the end everybody is there, and waits for work.
async fn all_idle(site: &Site) {
    until("all are listed as idle", || async {
        let listed = site.listed();
        let idle =
            |worker: &WorkerPresence| worker.state == WorkerState::Idle && worker.held.is_empty();
        (listed.len() == site.workers_count() && listed.values().all(idle)).then_some(())
    })
    .await;
}

#[test]
#[should_panic(expected = "no iproute2")]
fn hosts_that_are_required_and_cannot_be_are_a_failure() {
    let none: Option<()> = Hosts::Required.take(Err("no iproute2".to_owned()));
    assert_eq!(none, None);
}

#[tokio::test]
async fn painters_that_are_cut_off_while_others_work_lose_nothing_and_come_back() {
    let Some(site) = site(&[PAINT_A, PAINT_B]).await else {
        return;
    };
    let (entries, ()) = site
        .while_asked(async {
            cut(&site, PAINT_A, Cut::Dropped, SHORT).await;
            cut(&site, PAINT_A, Cut::Dropped, LONG).await;
            cut(&site, PAINT_A, Cut::Pulled, SHORT).await;
        })
        .await;
    println!("{} jobs", entries.len());
    site.audit(&entries, None).await;
    all_idle(&site).await;
    // What they finished while they were away was painted again by the others, whose results were first.
    let late = site.counted(PAINT_A, "fresco_results_suppressed").await;
    assert!(late > 0, "no late result came");
}

#[tokio::test]
async fn jobs_wait_for_the_only_painters_and_for_the_only_writer() {
    let Some(site) = site(&[PAINT_A]).await else {
        return;
    };
    let (entries, ()) = site
        .while_asked(async {
            cut(&site, PAINT_A, Cut::Pulled, SHORT).await;
            cut(&site, AR, Cut::Dropped, SHORT).await;
        })
        .await;
    println!("{} jobs", entries.len());
    site.audit(&entries, None).await;
    all_idle(&site).await;
}

#[tokio::test]
async fn a_gateway_that_is_parted_from_its_broker_says_so_and_answers_afterwards() {
    let Some(site) = site(&[PAINT_A]).await else {
        return;
    };
    let api = Api::new(site.gateway());
    let until_says = |status: StatusCode| {
        let api = &api;
        let said = move || async move { (api.readiness().await? == status).then_some(()) };
        async move { until(&format!("the gateway says {status}"), said).await }
    };
    // Beside the careful clients one that asks once, before the cut, and waits.
    let request = json!({"prompt": "a red fox", "size": "64x64", "n": 2, "num_inference_steps": 4});
    let (entries, once) = site
        .while_asked(async {
            let answer = api.generate(&request, &[]);
            let parted = async {
                until_new_work(&site, PAINT_A, 0).await;
                site.network.part([GATEWAY, BROKER]);
                let start = Instant::now();
                until_says(StatusCode::SERVICE_UNAVAILABLE).await;
                println!("not ready after {:.1?}", start.elapsed());
                sleep(LONG.saturating_sub(start.elapsed())).await;
                site.network.join([GATEWAY, BROKER]);
                let healed = Instant::now();
                until_says(StatusCode::OK).await;
                println!("ready {:.1?} after", healed.elapsed());
                assert!(healed.elapsed() < BACK_WITHIN);
            };
            let (answer, ()) = tokio::join!(answer, parted);
            let answer = answer.expect("the gateway answers");
            assert_eq!(answer.data().len(), 2);
            answer.headers["x-request-id"]
                .to_str()
                .unwrap()
                .parse()
                .unwrap()
        })
        .await;
    println!("{} jobs", entries.len());
    site.audit(&entries, Some(once)).await;
    all_idle(&site).await;
}

#[tokio::test]
async fn a_broker_that_is_parted_from_the_two_others_with_those_connected_to_it_costs_nothing() {
    let Some(site) = site_on(&BROKERS, &[PAINT_A, PAINT_B]).await else {
        return;
    };
    let (entries, ()) = site
        .while_asked(async {
            until_new_work(&site, PAINT_A, 0).await;
            // The worst one to lose. Those who paint on that side find no other broker.
            let side = [site.leader().await, PAINT_A];
            site.network.split(&side);
            let start = Instant::now();
            // Before anybody is back. What was on its way to them does not count.
            until_new_work(&site, PAINT_B, now_ms() + 1_000).await;
            let others = start.elapsed();
            say(&format!(
                "{side:?} apart: the others have new work after {others:.1?}"
            ));
            sleep(LONG.saturating_sub(start.elapsed())).await;
            site.network.unite(&side);
            let (healed, at_ms) = (Instant::now(), now_ms());
            until_new_work(&site, PAINT_A, at_ms).await;
            let back = healed.elapsed();
            say(&format!(
                "{side:?} apart for {LONG:?}: new work {back:.1?} after"
            ));
            assert!(back < BACK_WITH_BROKER_WITHIN, "{back:?}");
        })
        .await;
    println!("{} jobs", entries.len());
    site.audit(&entries, None).await;
    all_idle(&site).await;
}
