//! `infra/nats/single.conf` as operators get it: each role can do its part, and is refused what is none of it.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

use std::time::Duration;

use async_nats::{ConnectOptions, Event};
use messaging::{
    Access, Bus, BusConfig, Change, Claim, Ends, Fence, Presence, ProvisionError, Results, State,
    SystemEvent, SystemWatch, Wanted, WorkQueue,
};
use protocol::{
    DeadLetter, DeadMessage, ErrorCode, IdempotencyRecord, JobError, LifeEvent, Prefix,
    PriorityClass, Progress, Role, Stage, WorkStage, WorkerId, WorkerPresence, WorkerState,
    topology::{ConsumerSpec, Topology, TopologyOptions},
};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    common::Broker,
    priors::prior,
    queues::record,
    secured::Secrets,
    site::{ar_job, denoise_job, output, output_of, picture, until, within},
};

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

fn started(stage: WorkStage, worker: &WorkerId) -> LifeEvent {
    LifeEvent::Started {
        stage,
        worker: worker.clone(),
    }
}

/// Takes a request in, as a gateway does.
async fn accept(gateway: &Bus) {
    gateway.verify(&Topology::new(&prefix())).await.unwrap();
    let key = "order 7".parse().unwrap();
    let claim = IdempotencyRecord {
        request_digest: "ab".repeat(32),
        record: record(1),
    };
    let claimed = gateway.claim_key(&key, &claim).await.unwrap();
    assert!(matches!(claimed, Claim::New));
    let claimed = gateway.claim_key(&key, &claim).await.unwrap();
    assert!(matches!(claimed, Claim::Taken(_)));
    until("a copy knows the key", || async {
        gateway.claimed(&key).await.unwrap().is_some()
    })
    .await;
    gateway.create_job(&record(1)).await.unwrap();
    let class = PriorityClass::Standard;
    gateway.publish_ar_job(class, &ar_job(1)).await.unwrap();
    assert!(gateway.is_ar_queued(record(1).job).await.unwrap());
    // A scrape, which looks at the oldest message too. In a cluster the consumer hears of it a moment after the stream.
    until("a scrape sees the oldest message", || async {
        let measured = gateway.measures().await.unwrap();
        let mut queues = measured.ar.iter();
        queues.any(|(_, queue)| queue.oldest_at.is_some())
    })
    .await;
}

/// Takes it, writes, and leaves an output for the denoisers.
async fn write(site: &Site, batcher: &Bus) {
    let topology = Topology::new(&prefix());
    batcher.verify(&topology).await.unwrap();
    let (worker, _presence) = site.appear(batcher, Role::ArBatcher);
    let ends = Ends::start(batcher, &site.tracker, CancellationToken::new());
    ends.await.unwrap();
    let mut queue = site.open(batcher, &topology.ar_consumers[1]).await;
    let delivery = within("the request", queue.next()).await;
    assert!(batcher.job(record(1).job).await.unwrap().is_some());
    let started = started(WorkStage::Prior, &worker);
    batcher
        .advance(output(1), started, 1)
        .await
        .unwrap()
        .unwrap();
    assert!(!batcher.has_result(output(1)).await.unwrap());
    assert_eq!(batcher.put_prior(&prior(7)).await.unwrap(), Fence::First);
    until("a copy knows the tokens", || async {
        batcher.cached_prior(prior(7).id).await.unwrap().is_some()
    })
    .await;
    batcher.report_progress(&progress(Stage::Prior)).await;
    let class = PriorityClass::Standard;
    batcher
        .publish_denoise_job(class, &denoise_job(1))
        .await
        .unwrap();
    let stored = batcher.advance(output(1), LifeEvent::PriorStored, 2);
    stored.await.unwrap().unwrap();
    delivery.lease.ack().await;
    within("it appears", seen(batcher, &worker)).await;
    assert!(
        batcher
            .ended_outputs(record(1).job)
            .await
            .unwrap()
            .is_empty()
    );
}

/// Takes the output, paints it, and gives up another one.
async fn paint(site: &Site, denoiser: &Bus) {
    let topology = Topology::new(&prefix());
    denoiser.verify(&topology).await.unwrap();
    let (worker, _presence) = site.appear(denoiser, Role::Denoiser);
    let mut queue = site.open(denoiser, &topology.denoise_consumer).await;
    let delivery = within("the output", queue.next()).await;
    assert!(!denoiser.has_result(output(1)).await.unwrap());
    let known = denoiser.known_life(output(1)).await.unwrap();
    let started = started(WorkStage::Denoise, &worker);
    denoiser
        .advance_known(&known, started, 3)
        .await
        .unwrap()
        .unwrap();
    denoiser.report_progress(&progress(Stage::Denoise)).await;
    denoiser.publish_dead_letter(&letter()).await.unwrap();
    let result = picture(output(1), vec![1; 100_000]);
    assert_eq!(denoiser.put_result(&result).await.unwrap(), Fence::First);
    within("its end is told", denoiser.ended(output(1))).await;
    delivery.lease.ack().await;
    within("it appears", seen(denoiser, &worker)).await;
    queue.close().await;
}

fn progress(stage: Stage) -> Progress {
    Progress {
        output: output(1),
        stage,
        step: 1,
        steps: 2,
    }
}

fn letter() -> DeadLetter {
    DeadLetter {
        output: output(9),
        stage: WorkStage::Denoise,
        reason: JobError::new(ErrorCode::DenoiseFailed, "no picture"),
        attempts: vec![],
        message: DeadMessage::Denoise(denoise_job(9)),
        dead_at: 1,
    }
}

async fn seen(bus: &Bus, worker: &WorkerId) {
    until("a worker is seen", || async {
        let workers = bus.workers().await.unwrap();
        workers.iter().any(|one| one.worker == *worker)
    })
    .await;
}

/// Looks at everything that a client may ask for, and clears a job away.
async fn answer(gateway: &Bus) {
    let job = record(1).job;
    assert!(gateway.result(output(1)).await.unwrap().is_some());
    assert!(gateway.job(job).await.unwrap().is_some());
    until("a copy knows the life", || async {
        gateway.life(output(1)).await.unwrap().is_some()
    })
    .await;
    assert!(gateway.prior(prior(7).id).await.unwrap().is_some());
    assert!(gateway.results_store().await.unwrap().is_some());
    assert_eq!(gateway.ended_outputs(job).await.unwrap().len(), 1);
    assert!(!gateway.workers().await.unwrap().is_empty());
    gateway.queues().await.unwrap();
    gateway
        .publish_ar_job(PriorityClass::Low, &ar_job(2))
        .await
        .unwrap();
    gateway.withdraw(ar_job(2).job).await.unwrap();
    assert!(!gateway.is_ar_queued(ar_job(2).job).await.unwrap());
    let ended = protocol::OutputResult {
        outcome: Err(JobError::new(ErrorCode::Cancelled, "cancelled")),
        ..picture(output(2), vec![1])
    };
    gateway.put_result(&ended).await.unwrap();
    gateway.remove_job(job).await.unwrap();
    assert!(gateway.job(job).await.unwrap().is_none());
}

/// Looks after what was given up.
async fn tend(operator: &Bus) {
    until("a copy knows the dead letter", || async {
        operator.dead_letters().await.unwrap().len() == 1
            && operator.dead_letter(output(9)).await.unwrap().is_some()
    })
    .await;
    operator.create_job(&record(1)).await.unwrap();
    let known = operator.job(record(1).job).await.unwrap();
    assert!(known.is_some() && operator.job(record(99).job).await.unwrap().is_none());
    let class = PriorityClass::Standard;
    operator.publish_ar_job(class, &ar_job(3)).await.unwrap();
    operator
        .publish_denoise_job(class, &denoise_job(9))
        .await
        .unwrap();
    assert!(operator.drop_dead_letter(output(9)).await.unwrap());
    operator.workers().await.unwrap();
    operator.queues().await.unwrap();
}

/// Gives back what a worker holds, and takes the worker off the list.
async fn give_back(site: &Site, watcher: &Bus, denoiser: &Bus) {
    let topology = Topology::new(&prefix());
    let kept = watcher.keep(&topology).await.unwrap();
    assert!(
        kept.created.is_empty() && kept.differing.is_empty(),
        "{kept:?}"
    );
    let (worker, presence) = site.appear(denoiser, Role::Denoiser);
    seen(watcher, &worker).await;
    let mut queue = site.open(denoiser, &topology.denoise_consumer).await;
    let held = within("held", queue.next()).await;
    assert_eq!(output_of(&held), output(9));
    assert!(watcher.give_back(&held.lease.ack_subject()).await);
    let mut other = site.open(denoiser, &topology.denoise_consumer).await;
    assert_eq!(within("it comes again", other.next()).await.delivered, 2);
    drop(presence);
    until("a copy that knows the worker is asked", || async {
        let buried = watcher.bury_worker(&worker).await.unwrap();
        buried.is_some_and(|last| last.worker == worker)
    })
    .await;
}

#[tokio::test]
async fn each_role_can_do_its_part_and_nothing_is_refused() {
    Box::pin(play(&Site::start(), 1)).await;
}

#[tokio::test]
async fn each_role_can_do_its_part_where_acks_have_their_longer_form() {
    Box::pin(play(&Site::start_with_longer_acks(), 1)).await;
}

#[tokio::test]
async fn each_role_can_do_its_part_on_a_cluster_of_three() {
    Box::pin(play(&Site::cluster(), 3)).await;
}

/// Every role's part, from the first request to the last dead letter.
async fn play(site: &Site, replicas: u8) {
    let urls = site.urls();
    let system_access = site.secrets.access("system");
    let system = SystemWatch::connect(&urls, &system_access, prefix()).await;
    let mut system = system.expect("the files are there");
    let first = within("the system account answers", system.next()).await;
    assert_eq!(first, Some(SystemEvent::Watching));

    let operator = site.connect(Role::Operator, "operator").await;
    let options = TopologyOptions {
        replicas: Some(replicas),
        ..TopologyOptions::default()
    };
    let topology = Topology::with(&prefix(), options);
    // A new cluster has no leader for its first seconds, on a busy machine for longer.
    let end = Instant::now() + Duration::from_secs(120);
    while let Err(error) = operator.provision(&topology).await {
        assert!(Instant::now() < end, "the streams cannot be made: {error}");
    }
    let came = within("it is told who came", system.next()).await;
    assert!(matches!(came, Some(SystemEvent::Connected(..))), "{came:?}");

    let gateway = site.connect(Role::Gateway, "gateway").await;
    let batcher = site.connect(Role::ArBatcher, "ar-batcher").await;
    let denoiser = site.connect(Role::Denoiser, "denoiser").await;
    let watcher = site.connect(Role::Operator, "watcher").await;
    let results = Results::start(&gateway, &site.tracker, CancellationToken::new()).await;
    let results = results.unwrap();
    let mut watch = results.watch(record(1).job, 1).unwrap();
    let _presence = site.appear(&gateway, Role::Gateway);

    accept(&gateway).await;
    write(site, &batcher).await;
    paint(site, &denoiser).await;
    let result = within("the result", watch.next()).await.unwrap();
    assert!(result.outcome.is_ok());
    assert!(!watch.progress().borrow().is_empty(), "progress was heard");
    assert!(batcher.result(output(1)).await.unwrap().is_some());
    answer(&gateway).await;
    tend(&operator).await;
    give_back(site, &watcher, &denoiser).await;

    // The server's log has every refusal in the order of their coming: this one is the first.
    let mut probe = Probe::connect(site, "denoiser").await;
    probe
        .violates(Try::Publish("fresco.ar.standard.sentinel"))
        .await;
    let told = site.nodes[0].next_violation();
    assert!(told.contains("sentinel"), "{told}");
    let others = site.nodes.iter().skip(1).flat_map(Broker::violations);
    assert_eq!(others.collect::<Vec<_>>(), [""; 0]);
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
    gateway.publish_ar_job(class, &ar_job(1)).await.unwrap();
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

/// A connection past our own code, which hears what it is refused.
struct Probe {
    client: async_nats::Client,
    refusals: mpsc::Receiver<String>,
}

#[derive(Clone, Copy)]
enum Try {
    Publish(&'static str),
    Subscribe(&'static str),
}

impl Probe {
    async fn connect(site: &Site, role: &str) -> Self {
        let access = site.secrets.access(role);
        let seed = std::fs::read_to_string(access.credentials.unwrap()).unwrap();
        let (tell, refusals) = mpsc::channel(16);
        let options = ConnectOptions::with_nkey(seed)
            .add_root_certificates(access.ca.unwrap())
            .require_tls(true)
            .event_callback(move |event| {
                if let Event::ServerError(error) = event {
                    tell.try_send(error.to_string()).expect("somebody listens");
                }
                std::future::ready(())
            });
        let client = within(role, options.connect(site.nodes[0].url())).await;
        let client = client.expect("the credential is good");
        Self { client, refusals }
    }

    /// Does it, and holds the next refusal to it.
    async fn violates(&mut self, what: Try) {
        let (kind, subject) = match what {
            Try::Publish(subject) => ("publish", subject),
            Try::Subscribe(subject) => ("subscription", subject),
        };
        match what {
            #[expect(clippy::disallowed_methods, reason = "it is to be refused")]
            Try::Publish(subject) => self.client.publish(subject, "".into()).await.unwrap(),
            // Kept alive by the client until the refusal has come.
            Try::Subscribe(subject) => drop(self.client.subscribe(subject).await.unwrap()),
        }
        let told = within(subject, self.refusals.recv()).await.unwrap();
        let told = told.to_lowercase();
        let wanted = format!("{kind} to \"{}\"", subject.to_lowercase());
        assert!(told.contains(&wanted), "{wanted}: {told}");
    }
}

/// What no role may do: change or read what others have, or take part in what is not the deployment's.
const NOBODY: &[Try] = &[
    Try::Publish("$JS.API.STREAM.DELETE.fresco-RES"),
    Try::Publish("$JS.API.STREAM.PURGE.fresco-RES"),
    Try::Publish("$JS.API.STREAM.PURGE.fresco-AR"),
    Try::Publish("$JS.API.STREAM.CREATE.another"),
    Try::Publish("$JS.API.STREAM.MSG.DELETE.fresco-RES"),
    Try::Publish("$JS.API.STREAM.SNAPSHOT.fresco-AR"),
    Try::Publish("$JS.API.STREAM.LEADER.STEPDOWN.fresco-AR"),
    Try::Publish("$JS.API.STREAM.MSG.GET.fresco-RES"),
    Try::Publish("$JS.API.CONSUMER.DELETE.fresco-DN.all"),
    Try::Publish("$JS.API.CONSUMER.CREATE.fresco-RES.mine"),
    Try::Publish("$JS.API.CONSUMER.CREATE.fresco-AR.mine"),
    Try::Publish("$JS.API.CONSUMER.CREATE.fresco-DN.mine"),
    Try::Publish("$JS.API.CONSUMER.DURABLE.CREATE.fresco-DN.mine"),
    Try::Publish("$SYS.REQ.SERVER.PING"),
    Try::Publish("fresco.done.job.0"),
    Try::Publish("another.ar.standard.job"),
    Try::Subscribe(">"),
    Try::Subscribe("fresco.>"),
    Try::Subscribe("fresco.ar.>"),
    Try::Subscribe("fresco.dn.>"),
    Try::Subscribe("fresco.res.>"),
    Try::Subscribe("$KV.>"),
    Try::Subscribe("$JS.>"),
    Try::Subscribe("_INBOX.>"),
];

const TAKES_REQUESTS: Try = Try::Publish("$JS.API.CONSUMER.MSG.NEXT.fresco-AR.standard");
const TAKES_OUTPUTS: Try = Try::Publish("$JS.API.CONSUMER.MSG.NEXT.fresco-DN.all");
const ACKS_REQUEST: Try = Try::Publish("$JS.ACK.fresco-AR.standard.1.1.1.1.0");
const ACKS_OUTPUT: Try = Try::Publish("$JS.ACK.fresco-DN.all.1.1.1.1.0");
const ACKS_REQUEST_V2: Try = Try::Publish("$JS.ACK._.hash.fresco-AR.standard.1.1.1.1.0");
const ACKS_OUTPUT_V2: Try = Try::Publish("$JS.ACK._.hash.fresco-DN.all.1.1.1.1.0");
// Whose message it is stands in the third place or the fifth, by the length: a stream's name in the other place says nothing.
const ACKS_REQUEST_AS_OUTPUT: Try = Try::Publish("$JS.ACK.fresco-AR.standard.fresco-DN.1.1.1.0");
const ACKS_OUTPUT_AS_REQUEST: Try = Try::Publish("$JS.ACK.fresco-DN.all.fresco-AR.1.1.1.0");
const ACKS_REQUEST_AS_OUTPUT_V2: Try =
    Try::Publish("$JS.ACK.fresco-DN.hash.fresco-AR.standard.1.1.1.1.0");
const ACKS_OUTPUT_AS_REQUEST_V2: Try =
    Try::Publish("$JS.ACK.fresco-AR.hash.fresco-DN.all.1.1.1.1.0");
const WRITES_RESULT: Try = Try::Publish("fresco.res.job.0");
const READS_RESULT: Try = Try::Publish("$JS.API.DIRECT.GET.fresco-RES.fresco.res.job.0");
const ASKS: Try = Try::Publish("fresco.ar.standard.job");
const QUEUES_OUTPUT: Try = Try::Publish("fresco.dn.standard.job.0");
const WRITES_JOB: Try = Try::Publish("$KV.fresco-jobs.job");
const READS_JOB: Try = Try::Publish("$JS.API.DIRECT.GET.KV_fresco-jobs.$KV.fresco-jobs.job");
const WRITES_LIFE: Try = Try::Publish("$KV.fresco-outputs.output");
const WRITES_PRIOR: Try = Try::Publish("$KV.fresco-priors.prior");
const READS_PRIOR: Try = Try::Publish("$JS.API.DIRECT.GET.KV_fresco-priors.$KV.fresco-priors.p");
const CLAIMS_KEY: Try = Try::Publish("$KV.fresco-idempotency.key");
const READS_KEY: Try = Try::Publish("$JS.API.STREAM.MSG.GET.KV_fresco-idempotency");
const BURIES: Try = Try::Publish("$KV.fresco-workers.worker");
const GIVES_UP: Try = Try::Publish("fresco.dead.job.0");
const READS_DEAD: Try = Try::Publish("$JS.API.DIRECT.GET.fresco-DEAD.fresco.dead.job.0");
const DROPS_DEAD: Try = Try::Publish("$JS.API.STREAM.PURGE.fresco-DEAD");
const WITHDRAWS: Try = Try::Publish("$JS.API.STREAM.MSG.DELETE.fresco-DN");
const REMOVES_JOB: Try = Try::Publish("$JS.API.STREAM.PURGE.KV_fresco-jobs");
const MAKES_STREAM: Try = Try::Publish("$JS.API.STREAM.CREATE.fresco-AR");
const MAKES_CONSUMER: Try = Try::Publish("$JS.API.CONSUMER.CREATE.fresco-DN.all");
const READS_REPLIES_OF_GATEWAY: Try = Try::Subscribe("_INBOX_fresco_gateway.>");
const READS_REPLIES_OF_AR_BATCHER: Try = Try::Subscribe("_INBOX_fresco_ar-batcher.>");
const READS_REPLIES_OF_DENOISER: Try = Try::Subscribe("_INBOX_fresco_denoiser.>");
const READS_REPLIES_OF_OPERATOR: Try = Try::Subscribe("_INBOX_fresco_operator.>");
const READS_REPLIES_OF_ADMIN: Try = Try::Subscribe("_INBOX_fresco_admin.>");
const CHANGES_STREAM: Try = Try::Publish("$JS.API.STREAM.UPDATE.fresco-AR");
const DELETES_STREAM: Try = Try::Publish("$JS.API.STREAM.DELETE.KV_fresco-outputs");
const READS_REPLIES_OF_WATCHER: Try = Try::Subscribe("_INBOX_fresco_watcher.>");
const HEARS_ENDS: Try = Try::Subscribe("fresco.done.>");
const HEARS_PROGRESS: Try = Try::Subscribe("fresco.prog.>");
const HEARS_CONNECTIONS: Try = Try::Subscribe("$SYS.ACCOUNT.*.CONNECT");

/// And what each may not besides.
const REFUSED: [(&str, &[Try]); 7] = [
    (
        "gateway",
        &[
            READS_REPLIES_OF_ADMIN,
            CHANGES_STREAM,
            DELETES_STREAM,
            READS_REPLIES_OF_AR_BATCHER,
            READS_REPLIES_OF_DENOISER,
            READS_REPLIES_OF_OPERATOR,
            READS_REPLIES_OF_WATCHER,
            TAKES_REQUESTS,
            TAKES_OUTPUTS,
            ACKS_REQUEST,
            ACKS_OUTPUT,
            ACKS_OUTPUT_V2,
            QUEUES_OUTPUT,
            WRITES_LIFE,
            WRITES_PRIOR,
            GIVES_UP,
            READS_DEAD,
            DROPS_DEAD,
            MAKES_STREAM,
            MAKES_CONSUMER,
            HEARS_CONNECTIONS,
        ],
    ),
    (
        "ar-batcher",
        &[
            READS_REPLIES_OF_ADMIN,
            CHANGES_STREAM,
            DELETES_STREAM,
            READS_REPLIES_OF_GATEWAY,
            READS_REPLIES_OF_DENOISER,
            READS_REPLIES_OF_OPERATOR,
            READS_REPLIES_OF_WATCHER,
            TAKES_OUTPUTS,
            ACKS_OUTPUT,
            ACKS_OUTPUT_V2,
            ACKS_OUTPUT_AS_REQUEST,
            ACKS_OUTPUT_AS_REQUEST_V2,
            ASKS,
            WRITES_JOB,
            CLAIMS_KEY,
            READS_KEY,
            READS_DEAD,
            DROPS_DEAD,
            WITHDRAWS,
            REMOVES_JOB,
            MAKES_STREAM,
            MAKES_CONSUMER,
            HEARS_PROGRESS,
            HEARS_CONNECTIONS,
        ],
    ),
    (
        "denoiser",
        &[
            READS_REPLIES_OF_ADMIN,
            CHANGES_STREAM,
            DELETES_STREAM,
            READS_REPLIES_OF_GATEWAY,
            READS_REPLIES_OF_AR_BATCHER,
            READS_REPLIES_OF_OPERATOR,
            READS_REPLIES_OF_WATCHER,
            TAKES_REQUESTS,
            ACKS_REQUEST,
            ACKS_REQUEST_V2,
            ACKS_REQUEST_AS_OUTPUT,
            ACKS_REQUEST_AS_OUTPUT_V2,
            ASKS,
            QUEUES_OUTPUT,
            WRITES_JOB,
            READS_JOB,
            WRITES_PRIOR,
            READS_PRIOR,
            CLAIMS_KEY,
            READS_KEY,
            READS_DEAD,
            DROPS_DEAD,
            WITHDRAWS,
            REMOVES_JOB,
            MAKES_STREAM,
            MAKES_CONSUMER,
            HEARS_PROGRESS,
            HEARS_CONNECTIONS,
        ],
    ),
    (
        "operator",
        &[
            READS_REPLIES_OF_ADMIN,
            CHANGES_STREAM,
            DELETES_STREAM,
            READS_REPLIES_OF_GATEWAY,
            READS_REPLIES_OF_AR_BATCHER,
            READS_REPLIES_OF_DENOISER,
            READS_REPLIES_OF_WATCHER,
            TAKES_REQUESTS,
            TAKES_OUTPUTS,
            ACKS_REQUEST,
            ACKS_OUTPUT,
            ACKS_OUTPUT_V2,
            WRITES_RESULT,
            READS_RESULT,
            WRITES_LIFE,
            WRITES_PRIOR,
            READS_PRIOR,
            CLAIMS_KEY,
            READS_KEY,
            BURIES,
            GIVES_UP,
            WITHDRAWS,
            REMOVES_JOB,
            HEARS_ENDS,
            HEARS_PROGRESS,
            HEARS_CONNECTIONS,
        ],
    ),
    (
        "watcher",
        &[
            READS_REPLIES_OF_ADMIN,
            CHANGES_STREAM,
            DELETES_STREAM,
            READS_REPLIES_OF_GATEWAY,
            READS_REPLIES_OF_AR_BATCHER,
            READS_REPLIES_OF_DENOISER,
            READS_REPLIES_OF_OPERATOR,
            TAKES_REQUESTS,
            TAKES_OUTPUTS,
            WRITES_RESULT,
            READS_RESULT,
            ASKS,
            QUEUES_OUTPUT,
            WRITES_JOB,
            READS_JOB,
            WRITES_LIFE,
            WRITES_PRIOR,
            READS_PRIOR,
            CLAIMS_KEY,
            READS_KEY,
            GIVES_UP,
            READS_DEAD,
            DROPS_DEAD,
            WITHDRAWS,
            REMOVES_JOB,
            HEARS_ENDS,
            HEARS_PROGRESS,
            HEARS_CONNECTIONS,
        ],
    ),
    (
        "admin",
        &[
            READS_REPLIES_OF_GATEWAY,
            READS_REPLIES_OF_AR_BATCHER,
            READS_REPLIES_OF_DENOISER,
            READS_REPLIES_OF_OPERATOR,
            READS_REPLIES_OF_WATCHER,
            TAKES_REQUESTS,
            TAKES_OUTPUTS,
            ACKS_REQUEST,
            ACKS_OUTPUT,
            ACKS_OUTPUT_V2,
            WRITES_RESULT,
            READS_RESULT,
            ASKS,
            QUEUES_OUTPUT,
            WRITES_JOB,
            READS_JOB,
            WRITES_LIFE,
            WRITES_PRIOR,
            READS_PRIOR,
            CLAIMS_KEY,
            READS_KEY,
            BURIES,
            GIVES_UP,
            READS_DEAD,
            DROPS_DEAD,
            WITHDRAWS,
            REMOVES_JOB,
            MAKES_STREAM,
            Try::Publish("$JS.API.STREAM.DELETE.fresco-AR"),
            Try::Publish("$JS.API.STREAM.DELETE.KV_fresco-jobs"),
            Try::Publish("$JS.API.STREAM.UPDATE.another"),
            HEARS_ENDS,
            HEARS_PROGRESS,
            HEARS_CONNECTIONS,
        ],
    ),
    (
        "system",
        &[
            READS_REPLIES_OF_ADMIN,
            CHANGES_STREAM,
            DELETES_STREAM,
            READS_REPLIES_OF_GATEWAY,
            READS_REPLIES_OF_AR_BATCHER,
            READS_REPLIES_OF_DENOISER,
            READS_REPLIES_OF_OPERATOR,
            READS_REPLIES_OF_WATCHER,
            ASKS,
            WRITES_RESULT,
            TAKES_OUTPUTS,
            ACKS_OUTPUT,
            BURIES,
            HEARS_ENDS,
            Try::Publish("$SYS.REQ.SERVER.PING.STATSZ"),
            Try::Subscribe("$SYS.>"),
            Try::Subscribe("$SYS.ACCOUNT.*.SERVER.CONNS"),
        ],
    ),
];

#[tokio::test]
async fn each_role_is_refused_what_is_none_of_its_part() {
    let site = Site::start();
    for (role, refused) in REFUSED {
        let mut probe = Probe::connect(&site, role).await;
        for what in NOBODY.iter().chain(refused) {
            probe.violates(*what).await;
        }
    }
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
