//! `infra/nats/single.conf` as operators get it: each role can do its part, and is refused what is none of it.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

use std::time::Duration;

use async_nats::ConnectOptions;
use messaging::{
    Access, Bus, BusConfig, Change, Presence, ProvisionError, State, Wanted, WorkQueue,
};
use protocol::{
    Prefix, PriorityClass, Role, WorkerId, WorkerPresence, WorkerState,
    topology::{ConsumerSpec, Topology, TopologyOptions},
};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    common::Broker,
    secured::Secrets,
    site::{ar_job, within},
};

mod listed;
mod may;
mod parts;
mod probe;
mod replies;

/// The deployment that the configuration is written for.
fn prefix() -> Prefix {
    "fresco".parse().expect("a prefix")
}

struct Site {
    nodes: Vec<Broker>,
    secrets: Secrets,
    tracker: TaskTracker,
}

impl Site {
    fn start() -> Self {
        let secrets = Secrets::make();
        Self {
            nodes: vec![secrets.single()],
            secrets,
            tracker: TaskTracker::new(),
        }
    }

    /// A server that tells workers the longer form of the subject that acks, as a later one will by itself.
    fn start_with_longer_acks() -> Self {
        let secrets = Secrets::make();
        secrets.add("single.conf", "feature_flags { js_ack_fc_v2: true }");
        Self {
            nodes: vec![secrets.single()],
            secrets,
            tracker: TaskTracker::new(),
        }
    }

    fn cluster() -> Self {
        let secrets = Secrets::make();
        Self {
            nodes: secrets.cluster(),
            secrets,
            tracker: TaskTracker::new(),
        }
    }

    fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Broker::url).collect()
    }

    async fn connect(&self, role: Role, credential: &str) -> Bus {
        let config = BusConfig::new(self.urls(), prefix(), role).with_inbox(credential);
        let config = config.with_access(self.secrets.access(credential));
        let bus = Bus::connect(&config).await.expect("the files are there");
        within(credential, bus.connected()).await;
        bus
    }

    async fn open(&self, bus: &Bus, spec: &ConsumerSpec) -> WorkQueue {
        let queue = WorkQueue::open(bus, spec, &self.tracker).await;
        queue.expect("the bus is connected")
    }

    fn appear(&self, bus: &Bus, role: Role) -> (WorkerId, Presence) {
        let worker = WorkerId::generate(role);
        let first = WorkerPresence {
            worker: worker.clone(),
            role,
            state: WorkerState::Idle,
            reason: None,
            host: "here".to_owned(),
            process: 1,
            device: None,
            model_revision: None,
            health_address: None,
            held: Vec::new(),
            outputs_open: 0,
        };
        let presence = Presence::start(bus, first, &self.tracker, CancellationToken::new());
        (worker, presence)
    }
}

fn copies(replicas: u8) -> Topology {
    let options = TopologyOptions {
        replicas: Some(replicas),
        ..TopologyOptions::default()
    };
    Topology::with(&prefix(), options)
}

/// Asks a new cluster until it has a leader.
async fn patiently<T, F: Future<Output = Result<T, impl std::fmt::Display>>>(
    mut ask: impl FnMut() -> F,
) -> T {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < end, "no leader: {error}"),
        }
    }
}

#[tokio::test]
async fn a_cluster_gets_the_copies_that_somebody_said_and_an_admin_makes_more_of_them() {
    let site = Site::cluster();
    let watcher = site.connect(Role::Operator, "watcher").await;
    // With one copy a lost node would take accepted jobs along: nothing is made by default.
    let unsaid = Topology::new(&prefix());
    let kept = patiently(|| watcher.keep(&unsaid)).await;
    let is_unsaid = |error: &&ProvisionError| matches!(error, ProvisionError::Unsaid { .. });
    let unmade = kept.differing.iter().filter(is_unsaid).count();
    assert_eq!((kept.created.len(), unmade), (0, 9), "{kept:?}");

    let (one, three) = (copies(1), copies(3));
    patiently(|| watcher.provision(&one)).await;
    let gateway = site.connect(Role::Gateway, "gateway").await;
    let class = PriorityClass::Standard;
    gateway
        .publish_ar_job(class, None, &ar_job(1))
        .await
        .unwrap();
    let kept = patiently(|| watcher.keep(&three)).await;
    assert_eq!(kept.differing.len(), 9, "{kept:?}");
    let kept = patiently(|| watcher.keep(&unsaid)).await;
    assert_eq!(kept.differing.len(), 0, "{kept:?}");

    let admin = site.connect(Role::Operator, "admin").await;
    let wanted = Wanted {
        ack_wait: Some(Duration::from_secs(30)),
        replicas: Some(3),
        ..Wanted::default()
    };
    let mut changes = Vec::new();
    admin.change(wanted, &mut changes).await.unwrap();
    assert_eq!(changes.len(), 9 + 4, "{changes:?}");
    let emptied = changes.iter().filter_map(|change| match change {
        Change::Emptied(name) => Some(name.as_str()),
        Change::Changed(_) => None,
        Change::Unanswered(_) | Change::Removed(_) => panic!("{change:?}"),
    });
    let told_again = [
        "stream KV_fresco-outputs",
        "stream KV_fresco-priors",
        "stream KV_fresco-workers",
    ];
    assert_eq!(emptied.collect::<Vec<_>>(), told_again);
    let findings = patiently(|| admin.inspect(wanted)).await;
    for finding in findings {
        assert_eq!(finding.state, State::AsWanted, "{}", finding.name);
    }
    let queued = patiently(|| gateway.is_ar_queued(ar_job(1).job)).await;
    assert!(queued, "what was accepted is there");
    let violations = site.nodes.iter().flat_map(Broker::violations);
    assert_eq!(violations.collect::<Vec<_>>(), [""; 0]);
}

#[tokio::test]
async fn who_has_no_credential_or_another_authority_is_not_let_in() {
    let site = Site::start();
    let strangers = Secrets::make();
    let ours = site.secrets.access("gateway");
    let theirs = strangers.access("gateway");
    let table = [
        ("none", None, ours.ca.clone()),
        ("another's", theirs.credentials.clone(), ours.ca.clone()),
        ("another authority", ours.credentials.clone(), theirs.ca),
        ("no authority", ours.credentials.clone(), None),
    ];
    for (what, credentials, ca) in table {
        let mut options = ConnectOptions::new().connection_timeout(Duration::from_secs(10));
        if let Some(file) = credentials {
            options = options.nkey(std::fs::read_to_string(file).unwrap());
        }
        if let Some(file) = ca {
            options = options.add_root_certificates(file);
        }
        let connected = within(what, options.connect(site.nodes[0].url())).await;
        assert!(connected.is_err(), "{what}");
    }
    // And one that is asked for TLS by its own flags gives its credentials to no server without.
    let plain = Broker::start();
    let config = BusConfig::new(vec![plain.url()], prefix(), Role::Gateway).with_access(ours);
    let bus = Bus::connect(&config).await.unwrap();
    let mut connection = bus.connection();
    let changed = tokio::time::timeout(Duration::from_secs(2), connection.changed()).await;
    assert!(changed.is_err(), "it connected without TLS");
    let nobodys = Access {
        credentials: Some("/nowhere/at/all".into()),
        ca: None,
    };
    let config = BusConfig::new(vec![plain.url()], prefix(), Role::Gateway).with_access(nobodys);
    assert!(Bus::connect(&config).await.is_err());
}
