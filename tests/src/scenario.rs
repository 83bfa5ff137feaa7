//! A fleet that does everything a fleet can do, watched by a real Prometheus, an OTLP collector of our own and an
//! emulation of Tempo's metrics-generator: what dashboards are executed against, and drawn from.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use protocol::{Role, trace::span::LOST_ATTEMPT};
use replay::{ArTimes, DenoiseTimes, Fault, FaultStage, Rule, Table};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::{Api, IN_BACKGROUND},
    fleet::{Fleet, until},
    otlp::{Collector, Tree, hex},
    process::Process,
    prometheus::Prometheus,
    queries::logql::Line,
    tempo::{Config, Generator, Processor},
    tenants::{PRESS, STUDIO, TestTenant},
};

/// AR in 200 ms, a picture of 10 steps in 600.
const TIMES: Table = Table {
    ar: ArTimes::new(&[(1, 200.0), (8, 300.0)], 258),
    denoise: DenoiseTimes {
        step_ms: 50.0,
        decode_ms: 100.0,
    },
};

const ROLES: [Role; 3] = [Role::Gateway, Role::ArBatcher, Role::Denoiser];

/// Some of them ask for two pictures, and three denoisers paint: there is always something that waits.
const CLIENTS: u64 = 8;

/// Longer than a job of the scenario takes: then half an edge has lost its other half.
const EDGES_WAIT: Duration = Duration::from_secs(20);

/// What is left of it: the fleet is idle, and everything that watched it can be asked.
pub struct Scenario {
    /// With the last values of every process.
    pub prometheus: Prometheus,
    /// With every span.
    pub collector: Arc<Collector>,
    /// Since when.
    pub start: Instant,
    began: f64,
    fleet: Fleet,
    _tenants: Process,
    _generator: Generator,
}

impl Scenario {
    /// Runs it: idle, at work, in trouble, and for long enough that rates are drawn from several scrapes.
    pub async fn run() -> Self {
        let start = Instant::now();
        let began = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let began = began.expect("after 1970").as_secs_f64();
        let collector = Arc::new(Collector::start().await);
        let generator = Generator::start(Arc::clone(&collector), EDGES_WAIT).await;
        let mut fleet = Fleet::watched(TIMES, &collector).await;
        let prometheus = Prometheus::start().await;
        let (tenants_gateway, tenants) = fleet.watched_gateway_of_tenants(&collector).await;
        prometheus.watch(&fleet.bus, &ROLES).await;
        prometheus.watch_tempo(generator.address());
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        scrapes(&prometheus, 1).await;
        load(&fleet, &tracker, &stop);
        load_of_tenants(&tenants, &tracker, &stop);
        scrapes(&prometheus, 4).await;
        refused(&tenants).await;
        trouble(&mut fleet, &prometheus).await;
        scrapes(&prometheus, 14).await;
        stop.cancel();
        tracker.close();
        tracker.wait().await;
        fleet.until_queues_empty().await;
        Self {
            prometheus,
            collector,
            start,
            began,
            fleet,
            _tenants: tenants_gateway,
            _generator: generator,
        }
    }

    /// How long ago it began: what a range query has to look at.
    pub fn seconds(&self) -> u64 {
        self.start.elapsed().as_secs()
    }

    /// When it began, in seconds of the Unix epoch.
    pub fn began(&self) -> f64 {
        self.began
    }

    /// What every process said.
    pub fn log_lines(&self) -> Vec<Line> {
        self.fleet.log_lines()
    }

    /// Who asks whom, once no half of an edge has anything to wait for.
    pub fn edges(&self) -> Vec<[String; 3]> {
        let (mut processor, now) = (Processor::new(Config::shipped()), Instant::now());
        for span in self.collector.spans() {
            processor.push(&span, now);
        }
        processor.expire(Duration::ZERO, now);
        let edges = processor.edges().into_iter();
        edges.map(|edge| edge.map(str::to_owned)).collect()
    }

    /// The trace of the job whose denoiser was killed.
    pub fn retried(&self) -> Tree {
        let spans = self.collector.spans();
        let lost = spans.iter().find(|span| span.name() == LOST_ATTEMPT);
        let lost = lost.expect("the next one tells of it");
        Tree::of(&spans, &hex(&lost.span.trace_id))
    }
}

fn request(number: u64, prompt: &str) -> Value {
    let of = |list: [&'static str; 3]| list[(number % 3) as usize];
    json!({
        "prompt": prompt, "seed": number, "num_inference_steps": 10, "n": 1 + number % 2,
        "size": of(["64x64", "96x64", "1024x1024"]), "priority": of(["high", "standard", "low"]),
    })
}

/// Clients that ask for one job after the other.
fn load(fleet: &Fleet, tracker: &TaskTracker, stop: &CancellationToken) {
    for client in 0..CLIENTS {
        let (api, stop) = (Api::new(&fleet.gateway), stop.clone());
        let work = async move {
            for round in 0_u64.. {
                let request = request(client * 1_000 + round, "a fox");
                drop(api.generate(&request, &[]).await);
            }
        };
        tracker.spawn(async move { stop.run_until_cancelled(work).await });
    }
}

/// Clients with a key each, of a gateway that tells them apart.
fn load_of_tenants(gateway: &Api, tracker: &TaskTracker, stop: &CancellationToken) {
    for (number, tenant) in (0..).zip([STUDIO, PRESS]) {
        let (api, stop) = (gateway.clone(), stop.clone());
        let work = async move {
            for round in 0_u64.. {
                let request = request(100_000 + number * 1_000 + round, "a vase");
                drop(api.generate(&request, &[tenant.header()]).await);
            }
        };
        tracker.spawn(async move { stop.run_until_cancelled(work).await });
    }
}

/// What a gateway with tenants refuses: a request without a key, and a bad one with.
async fn refused(gateway: &Api) {
    let keys: [&[TestTenant]; 2] = [&[], &[STUDIO]];
    for (keys, status) in keys.into_iter().zip([401, 400]) {
        let headers: Vec<_> = keys.iter().map(TestTenant::header).collect();
        let answer = gateway.generate(&json!({"prompt": 7}), &headers).await;
        assert_eq!(answer.expect("a gateway answers").status.as_u16(), status);
    }
}

/// One that is not kept waiting by the load.
fn urgent(number: u64, prompt: &str) -> Value {
    let mut request = request(number, prompt);
    request["priority"] = json!("high");
    request
}

/// Everything that goes wrong in a fleet's life, once.
async fn trouble(fleet: &mut Fleet, prometheus: &Prometheus) {
    let api = Api::new(&fleet.gateway);
    // First: what a denoiser counted since its last scrape goes with it, and a new one tells of nothing before its first.
    let alive = prometheus.now(r#"count(up{job="fresco"} == 1)"#).await[0].values[0];
    replace_a_painting_denoiser(fleet).await;
    prometheus.watch(&fleet.bus, &ROLES).await;
    until(
        "the lost one is missed and its substitute is scraped",
        || async {
            let (lost, there) = (r#"up{job="fresco"} == 0"#, r#"up{job="fresco"} == 1"#);
            let query = format!("count({lost}) >= 1 and count({there}) >= {alive}");
            (!prometheus.now(&query).await.is_empty()).then_some(())
        },
    )
    .await;
    // An output that every engine fails at: three attempts, then a dead letter.
    fleet.script(&[Rule {
        prompt_contains: "poison".to_owned(),
        stage: FaultStage::Denoise,
        fault: Fault::Fail,
    }]);
    let poisoned = api.submit(&urgent(1, "poison")).await;
    // One that is sent once more under its key.
    for _ in 0..2 {
        let key = [("idempotency-key", "once more"), IN_BACKGROUND];
        let answer = api.generate(&urgent(4, "a twin"), &key).await;
        assert_eq!(
            answer.expect("a gateway answers").status,
            StatusCode::ACCEPTED
        );
    }
    // One that is cancelled while it is painted, and one that runs out of time.
    let mut long = urgent(2, "a long one");
    long["num_inference_steps"] = json!(100);
    let long = api.submit(&long).await;
    api.until_state(&long, "denoise_running").await;
    api.cancel(&long).await;
    let mut late = urgent(3, "a late one");
    late["timeout_s"] = json!(1);
    late["num_inference_steps"] = json!(100);
    let late = api.submit(&late).await;
    refusals(fleet, &api).await;
    for job in [poisoned, long, late] {
        api.until_ended(&job).await;
    }
}

/// A denoiser that is killed with an output in its hands, and one that takes its place.
async fn replace_a_painting_denoiser(fleet: &mut Fleet) {
    let (painting, _) = fleet.until_painting().await;
    drop(fleet.denoisers.remove(painting));
    fleet.add_denoiser("denoiser-3");
    until("the substitute is there", || async {
        let workers = fleet.bus.workers().await.ok()?;
        let last = fleet.denoisers.last()?.id();
        workers
            .iter()
            .any(|worker| worker.process == last)
            .then_some(())
    })
    .await;
}

/// More than a gateway lets in, and what none takes.
async fn refusals(fleet: &Fleet, api: &Api) {
    let (_full, narrow) = fleet
        .start_gateway("narrow", &["--queue-outputs-max", "1"])
        .await;
    let wrong = json!({"prompt": 7});
    for (gateway, request, wanted) in [
        (&narrow, &request(4, "a fox"), StatusCode::TOO_MANY_REQUESTS),
        (api, &wrong, StatusCode::BAD_REQUEST),
    ] {
        let answer = gateway.generate(request, &[]).await;
        let answer = answer.expect("a gateway answers");
        assert_eq!(answer.status, wanted, "{answer:?}");
    }
}

/// Waits until each of the first processes has been scraped so often.
async fn scrapes(prometheus: &Prometheus, count: u32) {
    until("enough has been scraped", || async {
        let query = format!("count(sum_over_time(up{{job=\"fresco\"}}[5m]) >= {count}) >= 5");
        (!prometheus.now(&query).await.is_empty()).then_some(())
    })
    .await;
}
