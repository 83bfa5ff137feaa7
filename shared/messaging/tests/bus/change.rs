//! `fresco nats change` when an answer is late, or a no: whatever was done is told.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

use std::{collections::BTreeSet, future::Future, net::SocketAddr, time::Duration};

use async_nats::jetstream::stream;
use messaging::{Bus, BusConfig, Change, Finding, ProvisionError, State, Wanted};
use protocol::{
    Role,
    limits::PRESENCE_TTL,
    topology::{Topology, TopologyOptions},
};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

use crate::{
    between::{self, Asked, Fate},
    common::{Broker, free_port},
    site::{Site, connect, prefix, until, within},
};

/// With other settings than are wanted for a queue, a bucket and a consumer.
fn other() -> Topology {
    let mut other = Topology::new(&prefix());
    other.ar.messages_max = 7;
    other.jobs.bytes_max = 1_000_000;
    other.denoise_consumer.ack_pending_max = 3;
    other
}

/// A connection to `broker`, whose requests on these subjects wait for their fate.
async fn watched(
    broker: &Broker,
    subjects: &'static [&'static str],
    tracker: &TaskTracker,
) -> (Bus, mpsc::Receiver<Asked>) {
    let (ask, asked) = mpsc::channel(1);
    let url = between::start(&broker.url(), subjects, ask, tracker).await;
    let config = BusConfig::new(vec![url], prefix(), Role::Operator);
    let bus = Bus::connect(&config).await.expect("the address is one");
    within("connected", bus.connected()).await;
    (bus, asked)
}

/// What `change` has come to beside `meanwhile`, which never ends.
async fn changed(bus: &Bus, wanted: Wanted, meanwhile: impl Future<Output = ()>) -> Vec<Change> {
    let mut changes = Vec::new();
    tokio::select! {
        changed = bus.change(wanted, &mut changes) => changed.expect("it is changed"),
        () = meanwhile => {}
    }
    changes
}

/// Loses the first answer to each subject.
async fn lose_each_once(mut asked: mpsc::Receiver<Asked>) {
    let mut lost = BTreeSet::new();
    while let Some(Asked { subject, fate }) = asked.recv().await {
        let fate = match lost.insert(subject) {
            true => fate.send(Fate::AnswerLost),
            false => fate.send(Fate::Answered),
        };
        fate.expect("the request waits");
    }
    panic!("nobody asks: {lost:?}");
}

fn done(names: &[&str]) -> Vec<Change> {
    let changed = |name: &&str| Change::Changed((*name).to_owned());
    names.iter().map(changed).collect()
}

fn is_as_wanted(findings: &[Finding]) -> bool {
    let mut states = findings.iter().map(|finding| &finding.state);
    states.all(|state| *state == State::AsWanted)
}

#[tokio::test]
async fn a_change_is_told_also_when_its_answer_is_late() {
    let site = Site::with(other()).await;
    let subjects = &["STREAM.UPDATE.KV_t-jobs", "CONSUMER.CREATE.t-DN.all"];
    let (bus, asked) = watched(&site.broker, subjects, &site.tracker).await;
    let changes = changed(&bus, Wanted::default(), lose_each_once(asked)).await;
    let names = ["stream t-AR", "stream KV_t-jobs", "consumer t-DN/all"];
    assert_eq!(changes, done(&names));
    assert!(is_as_wanted(
        &site.bus.inspect(Wanted::default()).await.unwrap()
    ));
}

#[tokio::test]
async fn a_change_that_nobody_answers_is_told_as_such() {
    let site = Site::with(other()).await;
    let subjects = &["STREAM.UPDATE.KV_t-jobs"];
    let (bus, mut asked) = watched(&site.broker, subjects, &site.tracker).await;
    let waits = async { drop(asked.recv().await) };
    let changes = changed(&bus, Wanted::default(), waits).await;
    let unanswered = Change::Unanswered("stream KV_t-jobs".to_owned());
    assert_eq!(changes, [done(&["stream t-AR"]), vec![unanswered]].concat());
}

#[tokio::test]
async fn a_change_that_is_refused_is_none() {
    let site = Site::start().await;
    // One server keeps no three copies.
    let wanted = Wanted {
        replicas: Some(3),
        ..Wanted::default()
    };
    let mut changes = Vec::new();
    let refused = site.bus.change(wanted, &mut changes).await;
    assert!(refused.is_err());
    assert_eq!(changes, []);
}

/// The list of workers as it was when each entry had its own time to live, with one that a killed broker has brought back, and whose
/// time does not run.
#[tokio::test]
async fn a_list_of_workers_that_keeps_the_dead_can_be_changed_and_has_them_no_more() {
    let site = Site::start().await;
    let raw = site.raw().await;
    let now = raw.get_stream("KV_t-workers").await.unwrap();
    let old = stream::Config {
        max_age: Duration::ZERO,
        duplicate_window: Duration::from_secs(120),
        allow_message_ttl: true,
        subject_delete_marker_ttl: Some(4 * PRESENCE_TTL),
        ..now.cached_info().config.clone()
    };
    raw.update_stream(old).await.unwrap();
    let differing = site.bus.verify(&site.topology).await;
    assert!(
        matches!(&differing, Err(ProvisionError::Differs { name, .. }) if name == "stream KV_t-workers"),
        "{differing:?}"
    );
    let list = raw.get_key_value("t-workers").await.unwrap();
    list.put("dead", "was here".into()).await.unwrap();
    assert_eq!(site.bus.processes_shown().await.unwrap(), 1);
    until("nobody has shown himself for a while", async || {
        site.bus.processes_shown().await.unwrap() == 0
    })
    .await;
    assert_eq!(site.stored("KV_t-workers").await, 1);
    let mut changes = Vec::new();
    site.bus
        .change(Wanted::default(), &mut changes)
        .await
        .unwrap();
    assert_eq!(changes, done(&["stream KV_t-workers"]));
    site.bus.verify(&site.topology).await.unwrap();
    until("the dead are gone", async || {
        site.stored("KV_t-workers").await == 0
    })
    .await;
}

fn copies(replicas: u8) -> Topology {
    let options = TopologyOptions {
        replicas: Some(replicas),
        ..TopologyOptions::default()
    };
    Topology::with(&prefix(), options)
}

/// Three brokers that tell nobody of each other.
fn cluster() -> Vec<Broker> {
    let routes = [(); 3].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let all = routes.map(|route| format!("\"nats://{route}\"")).join(", ");
    let node = |(number, route): (usize, &SocketAddr)| {
        let cluster = format!("name: t, listen: \"{route}\", routes: [{all}], no_advertise: true");
        let config = format!("server_name: n{number}\ncluster {{ {cluster} }}");
        Broker::start_at(free_port(), &config)
    };
    routes.iter().enumerate().map(node).collect()
}

/// Decides on what takes buckets away and makes them: an answer to each of the two is lost, and the third bucket's subjects are
/// somebody else's at the first try.
async fn trouble(mut asked: mpsc::Receiver<Asked>, broker: &Broker) {
    let client = async_nats::connect(broker.url()).await.unwrap();
    let raw = async_nats::jetstream::new(client);
    let mut seen = BTreeSet::new();
    while let Some(Asked { subject, fate }) = asked.recv().await {
        let is_first = seen.insert(subject);
        let mut becomes = Fate::Answered;
        if subject.ends_with("t-workers") {
            let squatter = stream::Config {
                name: "squatter".to_owned(),
                subjects: vec!["$KV.t-workers.>".to_owned()],
                ..stream::Config::default()
            };
            match is_first {
                true => drop(raw.create_stream(squatter).await.unwrap()),
                false => drop(raw.delete_stream(squatter.name).await),
            }
        } else if is_first {
            becomes = Fate::AnswerLost;
        }
        fate.send(becomes).expect("the request waits");
    }
    panic!("nobody asks: {seen:?}");
}

#[tokio::test]
async fn what_was_taken_away_comes_back_whatever_goes_wrong_and_is_told() {
    let (nodes, tracker) = (cluster(), TaskTracker::new());
    let direct = connect(&nodes[0], Role::Operator).await;
    let one = copies(1);
    until("the cluster has a leader", async || {
        direct.provision(&one).await.is_ok()
    })
    .await;
    let subjects = &[
        "STREAM.DELETE.KV_t-outputs",
        "STREAM.CREATE.KV_t-priors",
        "STREAM.CREATE.KV_t-workers",
    ];
    let (bus, asked) = watched(&nodes[0], subjects, &tracker).await;
    let wanted = Wanted {
        replicas: Some(3),
        ..Wanted::default()
    };
    let changes = changed(&bus, wanted, Box::pin(trouble(asked, &nodes[0]))).await;
    let emptied = changes.iter().filter_map(|change| match change {
        Change::Emptied(name) => Some(name.as_str()),
        Change::Changed(_) => None,
        Change::Unanswered(_) | Change::Removed(_) => panic!("{changes:?}"),
    });
    let names = ["outputs", "priors", "workers"].map(|name| format!("stream KV_t-{name}"));
    assert_eq!(emptied.collect::<Vec<_>>(), names);
    assert_eq!(changes.len(), 9, "{changes:?}");
    until("a leader for all of it", async || {
        let findings = direct.inspect(wanted).await;
        findings.is_ok_and(|findings| is_as_wanted(&findings))
    })
    .await;
}
