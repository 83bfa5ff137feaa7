//! The dashboards at work: a fleet that does everything a fleet can do, a real Prometheus beside it, and every query of
//! every panel executed. And the time of a job adds up.

use std::time::Instant;

use integration::{
    api::Api,
    dashboards::dashboards,
    fleet::{Fleet, until},
    prometheus::Prometheus,
    tenants::{PRESS, STUDIO, TestTenant, tenants_file},
};
use protocol::Role;
use replay::{ArTimes, DenoiseTimes, Fault, FaultStage, Rule, Table};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

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

fn request(number: u64, prompt: &str) -> Value {
    let priorities = ["high", "standard", "low"];
    let sizes = ["64x64", "96x64", "1024x1024"];
    let of = |list: [&'static str; 3]| list[usize::try_from(number % 3).unwrap()];
    json!({
        "prompt": prompt, "size": of(sizes), "priority": of(priorities), "seed": number,
        "num_inference_steps": 10, "n": 1 + number % 2,
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
        assert_eq!(answer.unwrap().status.as_u16(), status);
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
    // An output that every engine fails at: three attempts, then a dead letter.
    fleet.script(&[Rule {
        prompt_contains: "poison".to_owned(),
        stage: FaultStage::Denoise,
        fault: Fault::Fail,
    }]);
    let poisoned = api.submit(&urgent(1, "poison")).await;
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
    // A denoiser that is killed with an output in its hands, and one that takes its place.
    let (painting, _) = fleet.until_painting().await;
    drop(fleet.denoisers.remove(painting));
    fleet.add_denoiser("substitute");
    until("the substitute is there", || async {
        let workers = fleet.bus.workers().await.ok()?;
        let last = fleet.denoisers.last()?.id();
        workers
            .iter()
            .any(|worker| worker.process == last)
            .then_some(())
    })
    .await;
    prometheus.watch(&fleet.bus, &ROLES).await;
    // More than a gateway lets in, and what none takes.
    let (_full, narrow) = fleet
        .start_gateway("narrow", &["--queue-outputs-max", "1"])
        .await;
    let refused = narrow.generate(&request(4, "a fox"), &[]).await.unwrap();
    assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS, "{refused:?}");
    let wrong = api.generate(&json!({"prompt": 7}), &[]).await.unwrap();
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST, "{wrong:?}");
    for job in [poisoned, long, late] {
        api.until_ended(&job).await;
    }
}

/// Waits until each of the first processes has been scraped so often.
async fn scrapes(prometheus: &Prometheus, count: u32) {
    until("enough has been scraped", || async {
        let query = format!("count(sum_over_time(up[5m]) >= {count}) >= 5");
        (!prometheus.now(&query).await.is_empty()).then_some(())
    })
    .await;
}

/// What is wrong with a panel that has to move.
async fn fault(prometheus: &Prometheus, queries: &[String], seconds: u64) -> Option<String> {
    let mut moves = false;
    for query in queries {
        let query = query.replace("$__rate_interval", "10s");
        let query = query.replace("$deployment", "e2e");
        let series = prometheus.last(&query, seconds).await;
        if !series.iter().any(|series| !series.values.is_empty()) {
            return Some(format!("empty, or not a number: {query}"));
        }
        moves |= series.iter().any(|series| series.moves());
    }
    (!moves).then(|| format!("constant: {queries:?}"))
}

/// The one value of a query that has one.
async fn value(prometheus: &Prometheus, query: &str) -> f64 {
    let series = prometheus.now(query).await;
    assert_eq!(series.len(), 1, "{query}: {series:?}");
    series[0].values[0]
}

#[tokio::test]
async fn every_panel_shows_a_fleet_at_work_and_its_time_adds_up() {
    let start = Instant::now();
    let mut fleet = Fleet::replay(3, TIMES).await;
    let prometheus = Prometheus::start().await;
    let tenants = tenants_file(fleet.folder());
    let tenants = ["--tenants", tenants.to_str().unwrap()];
    let (_process, tenants) = fleet.start_gateway("tenants", &tenants).await;
    prometheus.watch(&fleet.bus, &ROLES).await;
    let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
    // Seen idle, then at work, then in trouble, and for long enough that rates are drawn from several scrapes.
    scrapes(&prometheus, 1).await;
    load(&fleet, &tracker, &stop);
    load_of_tenants(&tenants, &tracker, &stop);
    scrapes(&prometheus, 4).await;
    refused(&tenants).await;
    trouble(&mut fleet, &prometheus).await;
    scrapes(&prometheus, 14).await;
    let seconds = start.elapsed().as_secs();
    let (mut executed, mut faults) = (0, Vec::new());
    for panel in dashboards().iter().flat_map(|dashboard| dashboard.panels()) {
        let queries = panel.promql();
        executed += queries.len();
        let fault = fault(&prometheus, &queries, seconds).await;
        if let Some(fault) = fault.filter(|_| panel.must_move()) {
            faults.push(format!("{}: {fault}", panel.name));
        }
    }
    println!("{executed} queries over {seconds} s");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(executed > 60, "{executed}");

    stop.cancel();
    tracker.close();
    tracker.wait().await;
    fleet.until_queues_empty().await;
    adds_up(&prometheus).await;
}

/// Waits and runs of all stages are the whole, within 2 %.
async fn adds_up(prometheus: &Prometheus) {
    let whole = r#"sum(fresco_output_duration_seconds_sum{outcome="done"})"#;
    let parts = "sum(fresco_stage_wait_seconds_sum) + sum(fresco_stage_run_seconds_sum)";
    let whole = value(prometheus, whole).await;
    let parts = value(prometheus, parts).await;
    let rest = value(prometheus, "sum(fresco_unattributed_seconds_sum)").await;
    assert!((parts - whole).abs() <= 0.02 * whole, "{parts} of {whole}");
    assert!(rest <= 0.02 * whole, "{rest} of {whole}");
}
