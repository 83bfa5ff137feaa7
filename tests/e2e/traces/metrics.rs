//! Metrics at the same collector: pushed, they say what a scrape says.

use std::{collections::BTreeMap, net::TcpListener};

use integration::{
    fleet::{Fleet, until},
    free_port, http,
    otlp::{Collector, Pushed, samples_of_text},
};

use super::{QUICK, exporting, fleet, fox};

/// They move while nothing happens: memory, tasks, spans of what is asked, pushes, and what is looked up by the clock.
const RESTLESS: [&str; 5] = [
    "fresco_process_resident_memory",
    "fresco_runtime",
    "fresco_spans",
    "fresco_metric_",
    "fresco_queue",
];

fn pushing(url: &str, protocol: &str) -> Vec<String> {
    let every_second = ["--otlp-metrics-s", "1"].map(str::to_owned);
    [exporting(url, protocol), every_second.into()].concat()
}

/// The samples that stand still.
fn quiet(mut samples: BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    samples.retain(|name, _| !RESTLESS.iter().any(|restless| name.starts_with(restless)));
    samples
}

/// What each process says of itself in a scrape, by its name.
async fn scraped(fleet: &Fleet) -> BTreeMap<String, BTreeMap<String, f64>> {
    let mut scraped = BTreeMap::new();
    for worker in fleet.bus.workers().await.unwrap() {
        let url = format!("http://{}/metrics", worker.health_address.unwrap());
        let (_, text) = http::text(&url).await.unwrap();
        scraped.insert(worker.worker.to_string(), quiet(samples_of_text(&text)));
    }
    scraped
}

/// What each process pushed last.
fn last(pushed: &[Pushed]) -> BTreeMap<String, &Pushed> {
    let named = pushed.iter().map(|pushed| {
        let name = pushed.process("service.instance.id").unwrap();
        (name.to_owned(), pushed)
    });
    named.collect()
}

#[tokio::test]
async fn pushed_metrics_are_those_of_a_scrape_over_both_protocols() {
    for protocol in ["grpc", "http/protobuf"] {
        let collector = Collector::start().await;
        let mut fleet = fleet(QUICK, 1, pushing(&collector.url(), protocol)).await;
        let answer = http::generate(&fleet.gateway, &fox(2)).await;
        assert_eq!(answer.data().len(), 1);
        fleet.until_queues_empty().await;
        fleet.until_idle(1).await;
        until("all that is scraped is pushed", || async {
            let (before, seen) = (scraped(&fleet).await, collector.pushed().len());
            // Three processes: each has pushed once more when there are so many.
            until("everybody has pushed", || async {
                let fresh = collector.pushed().split_off(seen);
                (last(&fresh).len() == before.len()).then_some(())
            })
            .await;
            let pushed = collector.pushed();
            let last = last(&pushed).into_iter();
            let last: BTreeMap<_, _> = last.map(|(name, p)| (name, quiet(p.samples()))).collect();
            // Else something moved meanwhile.
            for (name, samples) in &last {
                let moved = samples
                    .iter()
                    .filter(|(sample, value)| before[name].get(*sample) != Some(value));
                println!("{name}: {:?}", moved.collect::<Vec<_>>());
            }
            (last == before && scraped(&fleet).await == before).then_some(())
        })
        .await;
        let names: usize = scraped(&fleet).await.values().map(BTreeMap::len).sum();
        assert!(names > 100, "{names} samples");
        let before_end = collector.pushed().len();
        fleet.terminate().await;
        let pushed = collector.pushed();
        assert_eq!(
            last(&pushed[before_end..]).len(),
            3,
            "the last ones at the end"
        );
        let spans = collector.spans();
        for pushed in last(&pushed).values() {
            let same = spans.iter().any(|span| {
                ["name", "namespace", "instance.id", "version"]
                    .iter()
                    .all(|name| {
                        let name = format!("service.{name}");
                        let known = pushed.process(&name);
                        known.is_some() && known == span.process(&name)
                    })
            });
            assert!(same && pushed.resource.len() == 4, "{:?}", pushed.resource);
        }
    }
}

/// What became of the pushes of some process, by outcome.
async fn pushes(fleet: &Fleet) -> BTreeMap<String, f64> {
    let workers = fleet.bus.workers().await.unwrap();
    let url = format!("http://{}/metrics", workers[0].health_address.unwrap());
    let (_, text) = http::text(&url).await.unwrap();
    let series = text.lines().filter_map(|line| {
        let line = line.strip_prefix("fresco_metric_pushes_total{outcome=\"")?;
        let (outcome, value) = line.split_once("\"} ")?;
        Some((outcome.to_owned(), value.parse().unwrap()))
    });
    series.collect()
}

#[tokio::test]
async fn a_collector_that_takes_no_metrics_costs_points_and_nothing_else() {
    // The kernel takes the connections; nobody reads from them.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let silent_url = format!("http://{}", silent.local_addr().unwrap());
    let nobody = format!("http://127.0.0.1:{}", free_port());
    for (url, protocol) in [
        (&nobody, "grpc"),
        (&nobody, "http/protobuf"),
        (&silent_url, "grpc"),
        (&silent_url, "http/protobuf"),
    ] {
        let mut fleet = fleet(QUICK, 1, pushing(url, protocol)).await;
        until("the gateway has found out", || async {
            let log = fleet.gateway_process.log();
            log.contains("the collector takes no metrics").then_some(())
        })
        .await;
        let answer = http::generate(&fleet.gateway, &fox(1)).await;
        assert_eq!(answer.data().len(), 1);
        until("the failures are counted", || async {
            let counts = pushes(&fleet).await;
            let failed = counts.get("failed").is_some_and(|failed| *failed >= 2.0);
            failed.then(|| assert!(counts["taken"] + counts["partial"] == 0.0, "{counts:?}"))
        })
        .await;
        fleet.terminate().await;
        let log = fleet.gateway_process.log();
        assert_eq!(
            log.matches("the collector takes no metrics").count(),
            1,
            "{log}"
        );
    }
}
