//! The driver between a real broker and replay engines.

use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser;
use futures::future::BoxFuture;
use messaging::{Access, Bus, BusConfig, Joining, Membership, WorkQueue};
use protocol::{
    ArJob, DenoiseJob, DenoiseParameters, ImageFormat, OutputIndex, OutputRequest, PriorId,
    PriorTokens, PriorUsage, Role, Seed, StoredPrior, decode, topology::Topology,
};
use service::{clock::unix_millis, metrics::Metrics};
use tempfile::TempDir;
use tokio::{sync::watch, time::timeout};

use super::{broker::Broker, *};
use crate::{
    counters::Counters,
    engine::{BatchProgress, PriorBatch, RowOutcome},
    replay::ReplayEngine,
};

const WITHIN: Duration = Duration::from_secs(30);

const FAIL_AT_EVERYTHING: &str = r#"[{"prompt_contains": "", "stage": "prior", "fault": "fail"}]"#;

/// A replay engine that tells how often it was called, and says at first that it is full.
struct Counted {
    engine: ReplayEngine,
    calls: AtomicUsize,
    /// So many calls are refused.
    full: AtomicUsize,
}

impl PriorEngine for Counted {
    fn codebook_size(&self) -> u32 {
        self.engine.codebook_size()
    }

    fn revision(&self) -> String {
        self.engine.revision()
    }

    fn run(
        &self,
        batch: PriorBatch,
        progress: watch::Sender<BatchProgress>,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Vec<RowOutcome>, EngineError>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let refuse = |left: usize| left.checked_sub(1);
        let full = self
            .full
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, refuse);
        if full.is_ok() {
            return Box::pin(async { Err(EngineError::Full) });
        }
        self.engine.run(batch, progress, stop)
    }
}

/// A batcher in this process, and what the denoisers would get.
struct Site {
    bus: Bus,
    engines: Vec<Arc<Counted>>,
    denoise: WorkQueue,
    health: Health,
    metrics: Metrics,
    folder: TempDir,
    broker: Broker,
}

impl Site {
    /// With these scripts, an engine each, of `slots` slots.
    async fn start(scripts: &[&str], slots: usize) -> Self {
        let broker = Broker::start();
        let prefix: protocol::Prefix = "t".parse().expect("a prefix");
        let config = BusConfig::new(vec![broker.url()], prefix.clone(), Role::Operator);
        let bus = Bus::connect(&config).await.expect("the broker runs");
        let provisioned = bus.provision(&Topology::new(&prefix)).await;
        provisioned.expect("an empty broker takes the topology");
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut engines = Vec::new();
        for (number, script) in scripts.iter().enumerate() {
            engines.push(Arc::new(counted(&folder, number, script).await));
        }
        let tracker = TaskTracker::new();
        let joining = Joining {
            name: protocol::WorkerId::generate(Role::ArBatcher),
            urls: vec![broker.url()],
            access: Access::default(),
            prefix,
            role: Role::ArBatcher,
            device: "replay".into(),
            model_revision: "replay".into(),
            host: "here".into(),
            health_address: ([127, 0, 0, 1], 1).into(),
        };
        let joined = Membership::join(joining, &tracker, |_| {}).await;
        let member = Arc::new(joined.expect("the streams are there"));
        let mut queues = Vec::new();
        for spec in &member.bus.topology().ar_consumers {
            queues.push(member.open(spec, &tracker).await.expect("it is there"));
        }
        let denoise = WorkQueue::open(&bus, &member.bus.topology().denoise_consumer, &tracker);
        let denoise = denoise.await.expect("it is there");
        let (health, metrics) = (Health::new(), Metrics::new(Role::ArBatcher));
        let parts = Parts {
            bench: Arc::new(Bench {
                ends: member.ends(&tracker).await.expect("connected"),
                member,
                counters: Counters::register(&metrics),
                cache: None,
                attempts_max: 3,
                policy: Policy::Continuous,
            }),
            engines: engines
                .iter()
                .map(|engine| Arc::clone(engine) as _)
                .collect(),
            limits: Limits {
                policy: Policy::Continuous,
                slots: vec![slots; scripts.len()],
                waiting_max: 16,
            },
            // Nobody paints here.
            ahead_max: Some(1_000),
            retry: Args::parse_from(["retry"]).retry,
            health: health.clone(),
            tracker: tracker.clone(),
            stop: CancellationToken::new(),
        };
        health.set_ready();
        let driver = Driver::new(parts).run(ByClass(queues));
        tracker.spawn(async move { driver.await.expect("no engine is gone") });
        Self {
            bus,
            engines,
            denoise,
            health,
            metrics,
            folder,
            broker,
        }
    }

    /// Whether `/metrics` says this.
    fn says(&self, line: &str) -> bool {
        let text = self.metrics.exposition().expect("metrics are text");
        text.lines().any(|said| said == line)
    }

    /// What `/metrics` says of a metric without labels.
    fn value(&self, name: &str) -> f64 {
        let text = self.metrics.exposition().expect("metrics are text");
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let value = line.expect("it is there").trim();
        value.parse().expect("a number")
    }

    async fn publish(&self, number: u128, prior: Option<StoredPrior>) {
        self.publish_of(number, prior, unix_millis()).await;
    }

    async fn publish_of(&self, number: u128, prior: Option<StoredPrior>, accepted_at: UnixMillis) {
        let job = ArJob {
            job: JobId::from_u128(number),
            prompt: "a fox".into(),
            outputs: vec![OutputRequest {
                index: OutputIndex::FIRST,
                seed: Seed::new(7).expect("a seed"),
            }],
            size: "32x64".parse().expect("a size"),
            format: ImageFormat::Png,
            denoise: DenoiseParameters::new(1, 1.5).expect("in range"),
            prior,
            accepted_at,
            deadline_at: unix_millis() + 60_000,
        };
        let published = self.bus.publish_ar_job(PriorityClass::Standard, None, &job);
        published.await.expect("there is room");
    }

    /// The queue of requests and all that waits in it are gone, and an empty one is there.
    async fn make_queues_anew(&self) {
        let client = integration::cluster::client(&[self.broker.url()]).await;
        let client = client.expect("the broker runs");
        let deleted = client.request("$JS.API.STREAM.DELETE.t-AR", "".into());
        deleted.await.expect("the broker answers");
        let made = self.bus.provision(&Topology::new(self.bus.prefix())).await;
        made.expect("the rest is there");
    }

    /// The next output that a denoiser would paint; it is taken from the queue.
    async fn next(&mut self) -> DenoiseJob {
        let delivery = timeout(WITHIN, self.denoise.next()).await;
        let delivery = delivery.expect("an output comes");
        let job = decode(&delivery.payload).expect("a denoise message");
        delivery.lease.ack().await;
        job
    }

    fn calls(&self) -> Vec<usize> {
        let calls = self.engines.iter().map(|engine| &engine.calls);
        calls.map(|calls| calls.load(Ordering::Relaxed)).collect()
    }
}

async fn until(what: &str, so: impl Fn() -> bool) {
    let wait = async {
        while !so() {
            tokio::task::yield_now().await;
        }
    };
    timeout(WITHIN, wait).await.expect(what);
}

/// The flags that a driver reads by itself.
#[derive(Debug, clap::Parser)]
struct Args {
    #[command(flatten)]
    retry: RetryArgs,
}

async fn counted(folder: &TempDir, number: usize, script: &str) -> Counted {
    let times = folder.path().join("times.json");
    let table = replay::Table {
        ar: replay::ArTimes::new(&[(1, 20.0)], 258),
        denoise: replay::DenoiseTimes {
            step_ms: 0.0,
            decode_ms: 0.0,
        },
    };
    let table = serde_json::to_vec(&table).expect("a table is JSON");
    std::fs::write(&times, table).expect("the folder is ours");
    let faults = script_of(folder, number);
    std::fs::write(&faults, script).expect("the folder is ours");
    let flags = [
        "worker",
        "--engine",
        "replay",
        "--times",
        times.to_str().expect("paths of tests are text"),
        "--faults",
        faults.to_str().expect("paths of tests are text"),
    ];
    let args = crate::Args::parse_from(flags);
    let engine = ReplayEngine::load(&args.replay).await;
    Counted {
        engine: engine.unwrap_or_else(|_| panic!("a table and a script")),
        calls: AtomicUsize::new(0),
        full: AtomicUsize::new(0),
    }
}

fn script_of(folder: &TempDir, number: usize) -> std::path::PathBuf {
    folder.path().join(format!("faults-{number}.json"))
}

#[tokio::test]
async fn two_engines_of_one_batcher_share_the_load() {
    let mut site = Site::start(&["[]", "[]"], 1).await;
    for number in 1..=12 {
        site.publish(number, None).await;
    }
    for _ in 1..=12 {
        site.next().await;
    }
    let calls = site.calls();
    assert_eq!(calls.iter().sum::<usize>(), 12);
    // Who publishes here has no trace.
    assert!(site.says("fresco_messages_untraced_total 12"));
    // Where its time goes that is part of no stage; counted once the broker has confirmed it, which is when others have it too.
    let stored = async {
        while !site.says("fresco_ar_store_seconds_count 12") {
            tokio::task::yield_now().await;
        }
    };
    timeout(WITHIN, stored).await.expect("all are stored");
    assert!(calls.iter().all(|calls| *calls >= 3), "{calls:?}");
}

#[tokio::test]
async fn an_engine_that_fails_at_everything_is_left_out_until_it_is_healed() {
    let mut site = Site::start(&[FAIL_AT_EVERYTHING, "[]"], 1).await;
    for number in 1..=12 {
        site.publish(number, None).await;
    }
    for _ in 1..=12 {
        site.next().await;
    }
    let ready = site.health.snapshot();
    assert_eq!(
        ready,
        service::health::Readiness::Ready,
        "one engine is enough"
    );
    let failed = site.calls()[0];
    assert!(
        (3..=6).contains(&failed),
        "{failed} calls of the bad engine"
    );

    std::fs::write(script_of(&site.folder, 0), "[]").expect("the folder is ours");
    // Its next self-test succeeds, and it gets rows again.
    let healed = async {
        for number in 100.. {
            site.publish(number, None).await;
            site.next().await;
            if site.calls()[0] > failed + 2 {
                break;
            }
        }
    };
    timeout(WITHIN, healed).await.expect("it gets rows again");
}

#[tokio::test]
async fn a_batcher_in_quarantine_says_that_nothing_waits_in_it() {
    let site = Site::start(&[FAIL_AT_EVERYTHING], 1).await;
    for number in 1..=12 {
        site.publish(number, None).await;
    }
    let quarantined = async {
        while site.health.snapshot() == service::health::Readiness::Ready {
            tokio::task::yield_now().await;
        }
    };
    timeout(WITHIN, quarantined).await.expect("it gives up");
    assert!(site.says("fresco_ar_rows_waiting 0.0"));
    assert!(site.says("fresco_inflight{stage=\"ar\"} 0.0"));
}

#[tokio::test]
async fn an_engine_that_is_full_is_asked_again_and_costs_no_attempt() {
    let mut site = Site::start(&["[]"], 4).await;
    site.engines[0].full.store(3, Ordering::Relaxed);
    for number in 1..=6 {
        site.publish(number, None).await;
    }
    for _ in 1..=6 {
        let output = site.next().await.output;
        let life = site.bus.life(output).await.expect("the broker runs");
        let attempts = life.expect("it has one").attempts;
        assert!(
            attempts
                .iter()
                .all(|attempt| !attempt.counts() || attempt.outcome.is_none())
        );
    }
    assert_eq!(site.calls(), [6 + 3]);
    for taken in [
        "engine_calls_total",
        "rows_started_total",
        "batch_rows_count",
    ] {
        assert!(site.says(&format!("fresco_ar_{taken} 6")), "{taken}");
    }
}

#[tokio::test]
async fn a_batcher_tells_how_long_what_it_holds_has_waited() {
    let mut site = Site::start(&["[]"], 4).await;
    assert!(site.says("fresco_ar_oldest_waiting_seconds 0.0"));
    site.engines[0].full.store(usize::MAX, Ordering::Relaxed);
    for (number, ago_s) in [(1, 20), (2, 400), (3, 30)] {
        let accepted_at = unix_millis() - ago_s * 1_000;
        site.publish_of(number, None, accepted_at).await;
    }
    until("what waits is told of", || {
        site.value("fresco_ar_oldest_waiting_seconds") >= 400.0
    })
    .await;
    assert!(site.value("fresco_ar_oldest_waiting_seconds") < 500.0);

    site.engines[0].full.store(0, Ordering::Relaxed);
    for _ in 1..=3 {
        site.next().await;
    }
    until("nothing waits any more", || {
        site.value("fresco_ar_oldest_waiting_seconds") == 0.0
    })
    .await;
}

#[tokio::test]
async fn a_request_whose_first_message_went_with_its_stream_is_written_from_the_second() {
    let mut site = Site::start(&["[]"], 1).await;
    site.engines[0].full.store(usize::MAX, Ordering::Relaxed);
    site.publish(1, None).await;
    until("it is held", || site.calls()[0] > 0).await;
    site.make_queues_anew().await;
    // It gets the place that the held one had, so that the batcher knows at once that that one is gone.
    site.publish(1, None).await;
    until("it is let go", || {
        site.value("fresco_ar_rows_withdrawn_total") > 0.0
    })
    .await;
    site.engines[0].full.store(0, Ordering::Relaxed);
    assert_eq!(site.next().await.output.job, JobId::from_u128(1));
}

#[tokio::test]
async fn an_output_that_comes_with_its_prior_needs_no_engine() {
    let mut site = Site::start(&[FAIL_AT_EVERYTHING], 1).await;
    let stored = |columns: u16| StoredPrior {
        id: PriorId::from_u128(7),
        tokens: PriorTokens::new(2, columns, vec![1; 2 * usize::from(columns)]).expect("fills it"),
        usage: PriorUsage {
            prompt_tokens: 3,
            generated_tokens: 4,
            cached: false,
        },
    };
    site.publish(1, Some(stored(1))).await;
    let job = site.next().await;
    assert_eq!(job.prior, stored(1).tokens);
    assert_eq!(job.prior_id, Some(PriorId::from_u128(7)));
    assert_eq!((job.usage.prompt_tokens, job.usage.cached), (3, true));

    // One of another size is answered for.
    site.publish(2, Some(stored(2))).await;
    site.publish(3, Some(stored(1))).await;
    assert_eq!(site.next().await.output.job, JobId::from_u128(3));
    let refused = JobId::from_u128(2).output(OutputIndex::FIRST);
    let result = timeout(WITHIN, async {
        loop {
            if let Some(result) = site.bus.result(refused).await.expect("the broker runs") {
                return result;
            }
            tokio::task::yield_now().await;
        }
    });
    let result = result.await.expect("it is answered");
    let code = result.outcome.map_err(|error| error.code);
    assert_eq!(code.err(), Some(protocol::ErrorCode::PriorTokensInvalid));
    assert_eq!(site.calls(), [0]);
}
