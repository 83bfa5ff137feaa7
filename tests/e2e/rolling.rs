//! Every role restarted in turn while clients ask: nobody notices. And what readiness says when the broker is away.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use integration::{
    api::Api,
    fleet::{Engine, Fleet, Size, until},
    http,
    process::Process,
};
use protocol::Role;
use replay::{ArTimes, DenoiseTimes, Table};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const TABLE: Table = Table {
    ar: ArTimes::new(&[(1, 22.0), (2, 24.0)], 258),
    denoise: DenoiseTimes {
        step_ms: 20.0,
        decode_ms: 2.0,
    },
};

/// The default of `--grace-s`.
const GRACE: Duration = Duration::from_secs(4);

/// How often a load balancer probes; many do so each second, which only needs a longer look at a stopping gateway.
const PROBE_PERIOD: Duration = Duration::from_millis(50);

const CLIENTS: usize = 6;

async fn fleet() -> Fleet {
    Fleet::start(Size {
        denoisers: 3,
        ack_wait: Duration::from_secs(3),
        engine: Engine::Replay(TABLE),
        ..Size::default()
    })
    .await
}

fn request(i: usize) -> Value {
    let outputs = 1 + i % 2;
    json!({"prompt": format!("fox {i}"), "size": "32x32", "num_inference_steps": 5, "n": outputs})
}

/// A load balancer: asks whoever said last that it is ready, and the next one where nobody listens.
#[derive(Default)]
struct Balancer {
    gateways: Mutex<Vec<(Api, bool)>>,
    next: AtomicUsize,
    refused: AtomicUsize,
    answers: AtomicUsize,
}

impl Balancer {
    fn add(&self, url: &str) {
        let gateway = (Api::new(url), false);
        self.gateways.lock().unwrap().push(gateway);
    }

    fn ready(&self) -> Vec<Api> {
        let gateways = self.gateways.lock().unwrap();
        let ready = gateways.iter().filter(|(_, ready)| *ready);
        ready.map(|(api, _)| api.clone()).collect()
    }

    async fn probe(&self) {
        let all: Vec<_> = self.gateways.lock().unwrap().clone();
        for (api, _) in all {
            let ready = api.readiness().await == Some(StatusCode::OK);
            let mut gateways = self.gateways.lock().unwrap();
            let found = gateways.iter_mut().find(|(a, _)| a.url() == api.url());
            if let Some(found) = found {
                found.1 = ready;
            }
        }
    }

    async fn ask(&self, request: &Value) -> http::Answer {
        loop {
            let ready = self.ready();
            let turn = self.next.fetch_add(1, Ordering::Relaxed);
            if let Some(api) = ready.get(turn % ready.len().max(1)) {
                match api.generate(request, &[]).await {
                    Ok(answer) => {
                        self.answers.fetch_add(1, Ordering::Relaxed);
                        return answer;
                    }
                    Err(error) if error.is_connect() => {
                        self.refused.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => panic!("a request is cut off: {error:?}"),
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits for some answers more, so that what comes next meets a fleet at work.
    async fn until_at_work(&self) {
        let wanted = self.answers.load(Ordering::Relaxed) + 2 * CLIENTS;
        until("the clients have answers", || async {
            (self.answers.load(Ordering::Relaxed) >= wanted).then_some(())
        })
        .await;
    }
}

/// Statuses of the answers, and the longest time one took.
async fn load(
    balancer: Arc<Balancer>,
    stop: Arc<AtomicBool>,
) -> (Vec<(StatusCode, Value)>, Duration) {
    let (mut answers, mut longest) = (Vec::new(), Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let start = Instant::now();
        let answer = balancer.ask(&request(answers.len())).await;
        longest = longest.max(start.elapsed());
        answers.push((answer.status, answer.body));
    }
    (answers, longest)
}

/// Ends `old` in order and under load; returns how long that took.
async fn ended(old: &mut Process, balancer: &Balancer) -> Duration {
    balancer.until_at_work().await;
    let start = Instant::now();
    let status = old.terminate(GRACE).await;
    assert!(status.success(), "{status}");
    start.elapsed()
}

/// Waits until the worker of this process takes work.
async fn until_working(fleet: &Fleet, process: &Process) {
    let id = process.id();
    until("the new worker is there", || async {
        let workers = fleet.bus.workers().await.ok()?;
        let mut workers = workers.iter();
        workers
            .any(|worker| worker.process == id && worker.state.takes_work())
            .then_some(())
    })
    .await;
}

/// Starts another gateway, and tells the balancer.
async fn gateway(fleet: &Fleet, balancer: &Balancer, name: &str) -> Process {
    let (process, api) = fleet.start_gateway(name, &[]).await;
    balancer.add(api.url());
    process
}

/// Starts another worker, and waits until it takes work.
async fn worker(fleet: &Fleet, role: Role, name: &str) -> Process {
    let process = fleet.start_worker(role, name);
    until_working(fleet, &process).await;
    process
}

/// Restarts everything, one after the other; how long each took to stop.
async fn roll(fleet: &mut Fleet, others: &mut [Process; 2], balancer: &Balancer) -> Vec<Duration> {
    let [other_gateway, other_batcher] = others;
    let mut took = Vec::new();
    took.push(ended(&mut fleet.gateway_process, balancer).await);
    fleet.gateway_process = gateway(fleet, balancer, "gateway-3").await;
    took.push(ended(other_gateway, balancer).await);
    *other_gateway = gateway(fleet, balancer, "gateway-4").await;
    took.push(ended(&mut fleet.ar_batcher, balancer).await);
    fleet.ar_batcher = worker(fleet, Role::ArBatcher, "batcher-3").await;
    took.push(ended(other_batcher, balancer).await);
    *other_batcher = worker(fleet, Role::ArBatcher, "batcher-4").await;
    for i in 0..fleet.denoisers.len() {
        took.push(ended(&mut fleet.denoisers[i], balancer).await);
        fleet.denoisers[i] = worker(fleet, Role::Denoiser, &format!("again-{i}")).await;
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rolling_restart_of_every_role_under_load_fails_no_request_a35_a75() {
    let mut fleet = fleet().await;
    let balancer = Arc::new(Balancer::default());
    balancer.add(&fleet.gateway);
    let mut others = [
        gateway(&fleet, &balancer, "gateway-2").await,
        worker(&fleet, Role::ArBatcher, "batcher-2").await,
    ];
    let probed = Arc::clone(&balancer);
    let _probing = JoinSet::from_iter([async move {
        loop {
            probed.probe().await;
            tokio::time::sleep(PROBE_PERIOD).await;
        }
    }]);
    let stop = Arc::new(AtomicBool::new(false));
    let client = |_| load(Arc::clone(&balancer), Arc::clone(&stop));
    let clients: JoinSet<_> = (0..CLIENTS).map(client).collect();

    let start = Instant::now();
    let took = roll(&mut fleet, &mut others, &balancer).await;
    let rolled = start.elapsed();
    balancer.until_at_work().await;
    stop.store(true, Ordering::Relaxed);
    let (answers, longest): (Vec<_>, Vec<_>) = clients.join_all().await.into_iter().unzip();
    let answers: Vec<_> = answers.into_iter().flatten().collect();
    println!(
        "{} answers while {} processes restarted in {rolled:?}; stopping took {took:?}; {} refused connections; \
         the longest answer took {:?}",
        answers.len(),
        took.len(),
        balancer.refused.load(Ordering::Relaxed),
        longest.iter().max()
    );
    let failed: Vec<_> = answers
        .iter()
        .filter(|(status, _)| !status.is_success())
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(took.len(), 7);
    assert!(took.iter().all(|took| *took < GRACE), "{took:?}");
    fleet.until_queues_empty().await;
    assert_eq!(fleet.bus.dead_letters().await.unwrap(), []);
}

/// The status of a worker's or gateway's own `/readyz`.
async fn readiness(probes: SocketAddr) -> Option<u16> {
    let (status, _) = http::text(&format!("http://{probes}/readyz")).await?;
    Some(status.as_u16())
}

async fn until_all_say(probes: &[SocketAddr], wanted: u16) {
    for address in probes {
        until(&format!("{address} says {wanted}"), || async {
            (readiness(*address).await? == wanted).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn nobody_is_ready_while_the_broker_is_down_and_everybody_is_afterwards() {
    let mut fleet = fleet().await;
    let probes = until("all five are seen", || async {
        let workers = fleet.bus.workers().await.ok()?;
        let probes: Vec<_> = workers.iter().filter_map(|w| w.health_address).collect();
        (probes.len() == 5).then_some(probes)
    })
    .await;
    let api = Api::new(&fleet.gateway);
    until_all_say(&probes, 200).await;
    fleet.broker.kill();
    until_all_say(&probes, 503).await;
    assert_eq!(api.readiness().await, Some(StatusCode::SERVICE_UNAVAILABLE));
    let refused = api.generate(&request(0), &[]).await.unwrap();
    assert_eq!(
        (refused.status.as_u16(), refused.error().0),
        (503, "bus_unavailable")
    );
    assert!(refused.headers.contains_key("retry-after"));
    fleet.broker.start_again();
    until_all_say(&probes, 200).await;
    let answer = api.generate(&request(1), &[]).await.unwrap();
    assert_eq!(answer.data().len(), 2);
}
