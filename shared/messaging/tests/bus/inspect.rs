use std::time::Duration;

use messaging::{Change, Finding, State, Wanted};
use protocol::{
    PriorityClass,
    topology::{Topology, TopologyOptions},
};

use crate::site::{SHORT_ACK_WAIT, Site, ar_job, prefix};

/// What is not as it should be, with the fields that differ.
fn faults(findings: &[Finding]) -> Vec<(String, Vec<String>)> {
    let fields = |state: &State| match state {
        State::AsWanted => None,
        State::Missing => Some(vec![]),
        State::Differs(differences) => Some(differences.iter().map(ToString::to_string).collect()),
    };
    let fault = |finding: &Finding| Some((finding.name.clone(), fields(&finding.state)?));
    findings.iter().filter_map(fault).collect()
}

#[tokio::test]
async fn one_look_tells_everything_that_is_wrong_and_leaves_it_so() {
    let mut other = Topology::new(&prefix());
    other.ar.messages_max = 7;
    other.jobs.bytes_max = 9_000_000;
    other.denoise_consumer.ack_pending_max = 9;
    let site = Site::with(other).await;
    let raw = site.raw().await;
    raw.delete_stream(&site.topology.dead.name).await.unwrap();
    let table = [
        ("stream t-AR", vec!["max_msgs is 7, not 20000"]),
        ("stream t-DEAD", vec![]),
        (
            "bucket t-jobs",
            vec!["max_bytes is 9000000, not 1073741824"],
        ),
        ("consumer t-DN/all", vec!["max_ack_pending is 9, not 4096"]),
    ];
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let wanted: Vec<(String, Vec<String>)> = table
        .iter()
        .map(|(name, fields)| ((*name).to_owned(), owned(fields)))
        .collect();
    for _ in 0..2 {
        let found = site.bus.inspect(Wanted::default()).await.unwrap();
        assert_eq!(faults(&found), wanted);
        assert_eq!(found.len(), 1 + 4 + 5 + 4, "{found:?}");
    }
}

#[tokio::test]
async fn what_an_operator_may_choose_is_a_difference_only_when_it_was_asked_for() {
    let options = TopologyOptions {
        ack_wait: SHORT_ACK_WAIT,
        result_ttl: Duration::from_secs(90),
        replicas: Some(1),
    };
    let site = Site::with(Topology::with(&prefix(), options)).await;
    let as_it_is = Wanted {
        ack_wait: Some(options.ack_wait),
        result_ttl: Some(options.result_ttl),
        replicas: Some(1),
    };
    let none: Vec<&str> = vec![];
    let table = [
        (Wanted::default(), none.clone()),
        (as_it_is, none),
        (
            Wanted {
                replicas: Some(3),
                ..as_it_is
            },
            vec![
                "stream t-AR",
                "stream t-DN",
                "stream t-RES",
                "stream t-DEAD",
                "bucket t-jobs",
                "bucket t-outputs",
                "bucket t-idempotency",
                "bucket t-priors",
                "bucket t-workers",
            ],
        ),
        (
            Wanted {
                ack_wait: Some(Duration::from_secs(30)),
                ..as_it_is
            },
            vec![
                "consumer t-AR/high",
                "consumer t-AR/standard",
                "consumer t-AR/low",
                "consumer t-DN/all",
            ],
        ),
        (
            Wanted {
                result_ttl: Some(Duration::from_secs(60)),
                ..as_it_is
            },
            vec!["stream t-RES", "bucket t-idempotency", "bucket t-priors"],
        ),
    ];
    for (wanted, names) in table {
        let found = faults(&site.bus.inspect(wanted).await.unwrap());
        let found: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(found, names, "{wanted:?}");
    }
    let shorter = Wanted {
        result_ttl: Some(Duration::from_secs(60)),
        ..as_it_is
    };
    let (_, told) = faults(&site.bus.inspect(shorter).await.unwrap()).swap_remove(0);
    let age = "max_age is 90 s, not 1 min (--result-ttl-s, or broker.result_ttl_s of a fleet file)";
    assert!(told.contains(&age.to_owned()), "{told:?}");
}

#[tokio::test]
async fn what_differs_is_changed_to_what_is_wanted_and_keeps_what_it_holds() {
    let mut other = Topology::new(&prefix());
    other.ar.messages_max = 7;
    other.jobs.bytes_max = 1_000_000;
    other.results.bytes_max = 20_000_000;
    other.denoise_consumer.ack_pending_max = 3;
    let site = Site::with(other).await;
    let class = PriorityClass::Standard;
    site.bus
        .publish_ar_job(class, None, &ar_job(1))
        .await
        .unwrap();
    let mut changes = Vec::new();
    let changed = site.bus.change(Wanted::default(), &mut changes);
    changed.await.unwrap();
    let changed = ["stream t-AR", "stream KV_t-jobs", "consumer t-DN/all"];
    assert_eq!(
        changes,
        changed.map(|name| Change::Changed(name.to_owned()))
    );
    assert_eq!(
        faults(&site.bus.inspect(Wanted::default()).await.unwrap()),
        []
    );
    assert!(site.bus.is_ar_queued(ar_job(1).job).await.unwrap());
    // The room for results is the site's own.
    let store = site.bus.results_store().await.unwrap().unwrap();
    assert_eq!(store.bytes_max, Some(20_000_000));
    let mut again = Vec::new();
    let changed = site.bus.change(Wanted::default(), &mut again);
    changed.await.unwrap();
    assert_eq!(again, []);
}
