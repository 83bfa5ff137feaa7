//! Spans at a real collector: whole trees, of every role, whatever happens to processes and collectors.

use std::{
    collections::BTreeSet,
    net::{SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use integration::{
    api::Api,
    fleet::{Engine, Fleet, REPLAY_ACK_WAIT, Size, until},
    free_port,
    http::{self, Answer},
    otlp::{Captured, Collector, Tree, number},
    srt::{FakeSrt, Setup},
    tempo::{Config, Processor},
};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use protocol::trace::{attribute, event, span, value};
use replay::{ArTimes, DenoiseTimes, Fault, FaultStage, Rule, Table, Times};
use reqwest::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;

const QUICK: Table = Table {
    ar: ArTimes::new(&[(1, 5.0)], 254),
    denoise: DenoiseTimes {
        step_ms: 5.0,
        decode_ms: 5.0,
    },
};

/// The trace that a client started, and whether it is to be sampled.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-11111111111111111111111111111111-2222222222222222-00";

fn exporting(url: &str, protocol: &str) -> Vec<String> {
    ["--otlp-endpoint", url, "--otlp-protocol", protocol]
        .map(str::to_owned)
        .to_vec()
}

async fn fleet(table: Table, denoisers: usize, shell_flags: Vec<String>) -> Fleet {
    let fleet = Fleet::start(Size {
        denoisers,
        ack_wait: REPLAY_ACK_WAIT,
        engine: Engine::Replay(table),
        shell_flags,
        ..Size::default()
    })
    .await;
    fleet.script(&[]);
    fleet
}

fn fox(steps: u16) -> Value {
    json!({"prompt": "a red fox", "size": "64x64", "seed": 7, "num_inference_steps": steps})
}

/// A picture for a client that has a trace of its own.
async fn generate_in(fleet: &Fleet, traceparent: &str, request: &Value) -> Answer {
    let url = format!("{}/v1/images/generations", fleet.gateway);
    let request = Client::new()
        .post(url)
        .header("traceparent", traceparent)
        .json(request);
    let response = request.send().await.unwrap();
    Answer::read(response).await.unwrap()
}

fn services(spans: &[Captured]) -> Vec<&str> {
    let mut services: Vec<_> = spans
        .iter()
        .filter_map(|span| span.process("service.name"))
        .collect();
    services.sort_unstable();
    services.dedup();
    services
}

#[tokio::test]
async fn the_last_spans_before_sigterm_arrive_over_both_protocols() {
    for protocol in ["grpc", "http/protobuf"] {
        let collector = Collector::start().await;
        let mut fleet = fleet(QUICK, 1, exporting(&collector.url(), protocol)).await;
        let answer = generate_in(&fleet, SAMPLED, &fox(2)).await;
        assert_eq!(answer.data().len(), 1);
        fleet.terminate().await;

        let tree = Tree::of(&collector.spans(), TRACE);
        let wanted = ["fresco-ar-batcher", "fresco-denoiser", "fresco-gateway"];
        assert_eq!(services(&tree.spans), wanted, "{protocol}");
        for span in &tree.spans {
            let namespace = fleet.broker.prefix().to_string();
            assert_eq!(span.process("service.namespace"), Some(&*namespace));
            assert!(span.process("service.version").is_some());
            let role = span.process("service.name").unwrap().replace("fresco-", "");
            let name = span.process("service.instance.id").unwrap();
            assert!(name.starts_with(&role), "{name} is a {role}");
        }
    }
}

#[tokio::test]
async fn an_unsampled_parent_gives_no_spans() {
    let collector = Collector::start().await;
    let mut fleet = fleet(QUICK, 1, exporting(&collector.url(), "grpc")).await;
    for parent in [UNSAMPLED, SAMPLED] {
        assert_eq!(generate_in(&fleet, parent, &fox(2)).await.data().len(), 1);
    }
    fleet.terminate().await;
    let spans = collector.spans();
    let unsampled = Tree::of(&spans, "11111111111111111111111111111111");
    assert_eq!(unsampled.spans.len(), 0, "{}", unsampled.shown());
    assert!(!Tree::of(&spans, TRACE).spans.is_empty());
}

#[tokio::test]
async fn a_dead_collector_costs_spans_and_nothing_else() {
    for protocol in ["grpc", "http/protobuf"] {
        let nobody = format!("http://127.0.0.1:{}", free_port());
        let mut fleet = fleet(QUICK, 1, exporting(&nobody, protocol)).await;
        let told = |fleet: &Fleet| {
            let log = fleet.gateway_process.log();
            log.matches("the collector takes no spans").count()
        };
        until("the gateway has found out", || async {
            let answer = http::generate(&fleet.gateway, &fox(1)).await;
            assert_eq!(answer.data().len(), 1);
            (told(&fleet) > 0).then_some(())
        })
        .await;
        assert_eq!(
            http::generate(&fleet.gateway, &fox(1)).await.data().len(),
            1
        );
        fleet.terminate().await;
        assert_eq!(told(&fleet), 1, "{}", fleet.gateway_process.log());
    }
}

#[tokio::test]
async fn a_collector_that_never_answers_holds_no_process_up() {
    // The kernel takes the connections; nobody reads from them.
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    for protocol in ["grpc", "http/protobuf"] {
        let mut fleet = fleet(QUICK, 1, exporting(&url, protocol)).await;
        for _ in 0..3 {
            let answer = http::generate(&fleet.gateway, &fox(1)).await;
            assert_eq!(answer.data().len(), 1);
        }
        fleet.terminate().await;
    }
}

/// Long enough to be met in the middle.
const SLOW: Table = Table {
    ar: ArTimes::new(&[(1, 100.0), (2, 110.0)], 254),
    denoise: DenoiseTimes {
        step_ms: 100.0,
        decode_ms: 200.0,
    },
};

/// The whole trace, once each output's last span is there and its processes have had their say.
async fn tree_of(collector: &Collector, trace: &str, outputs: usize) -> Tree {
    let whole = |spans: &[Captured]| {
        let tree = Tree::of(spans, trace);
        let server = tree.named(SERVER);
        let painted = tree.named(span::PROCESS_DENOISE).into_iter();
        let done = painted.filter(|span| span.text(attribute::OUTCOME) == Some(value::DONE));
        let ended = [span::JOB, span::PROCESS_AR].map(|name| tree.named(name).len());
        let is_whole = server.len() == 1 && ended == [1, 1] && done.count() == outputs;
        is_whole.then_some(tree)
    };
    collector.until("the trace is whole", whole).await
}

const SERVER: &str = "POST /v1/images/generations";

#[tokio::test]
async fn a_job_is_one_tree_with_every_stage_in_its_place() {
    let collector = Collector::start().await;
    let fleet = fleet(SLOW, 2, exporting(&collector.url(), "grpc")).await;
    let mut request = fox(4);
    request["n"] = json!(2);
    let answer = generate_in(&fleet, SAMPLED, &request).await;
    assert_eq!(answer.headers["x-trace-id"], TRACE);
    let tree = tree_of(&collector, TRACE, 2).await;
    let roots: Vec<_> = tree.roots().iter().map(|root| root.name()).collect();
    assert_eq!(roots, [SERVER], "{}", tree.shown());
    assert_shape_for_two(&tree);
    assert_batches_are_linked(&tree, 2);
    assert_attributes(&tree, &answer.id());
    assert_documented(&collector.spans());
}

/// Numbers, kinds and ancestors of the spans of a job for two outputs.
#[track_caller]
fn assert_shape_for_two(tree: &Tree) {
    use SpanKind::{Consumer, Internal, Producer, Server};
    let painting = [
        span::PROCESS_DENOISE,
        span::PUBLISH_DENOISE,
        span::PROCESS_AR,
        span::PUBLISH_AR,
        span::JOB,
        SERVER,
    ];
    // The ancestors of each are those of its sibling above, less what is between.
    let stage = |name| (name, 2, Internal, &painting[..]);
    let row = |name| (name, 2, Internal, &painting[2..]);
    let table = [
        (SERVER, 1, Server, &painting[6..]),
        (span::JOB, 1, Internal, &painting[5..]),
        (span::PUBLISH_AR, 1, Producer, &painting[4..]),
        (span::PROCESS_AR, 1, Consumer, &painting[3..]),
        row(span::AR_WAIT),
        row(span::AR_RUN),
        row(span::AR_SETTLE),
        (span::PUBLISH_DENOISE, 2, Producer, &painting[2..]),
        (span::PROCESS_DENOISE, 2, Consumer, &painting[1..]),
        stage(span::CLAIM),
        stage(span::PREPARE),
        stage(span::DENOISE),
        stage(span::VAE_DECODE),
        stage(span::ENCODE),
        stage(span::STORE),
    ];
    for (name, count, kind, ancestry) in table {
        let spans = tree.named(name);
        assert_eq!(spans.len(), count, "{name} in:\n{}", tree.shown());
        for span in spans {
            assert_eq!(span.kind(), kind, "{name}");
            assert_eq!(
                tree.ancestry(span),
                ancestry,
                "{name} in:\n{}",
                tree.shown()
            );
            assert!(!span.failed(), "{name}");
        }
    }
}

#[track_caller]
fn assert_batches_are_linked(tree: &Tree, rows: usize) {
    let batches = tree.named(span::AR_BATCH);
    let links: Vec<_> = batches.iter().flat_map(|batch| &batch.span.links).collect();
    assert_eq!(links.len(), rows);
    for link in links {
        let rows = tree.named(span::AR_RUN);
        assert!(rows.iter().any(|row| row.span.span_id == link.span_id));
    }
    let engines = tree.named(span::AR_ENGINE);
    assert_eq!(engines.len(), batches.len());
    for engine in engines {
        let wanted = [span::AR_BATCH, span::PROCESS_AR];
        assert_eq!(tree.ancestry(engine)[..2], wanted);
    }
}

#[track_caller]
fn assert_attributes(tree: &Tree, job: &str) {
    for name in [
        span::JOB,
        span::PUBLISH_AR,
        span::PROCESS_AR,
        span::PUBLISH_DENOISE,
        span::PROCESS_DENOISE,
    ] {
        for span in tree.named(name) {
            assert_eq!(span.text(attribute::JOB_ID), Some(job), "{name}");
        }
    }
    let server = tree.only(SERVER);
    assert_eq!(
        server.number(attribute::HTTP_RESPONSE_STATUS_CODE),
        Some(200)
    );
    for span in tree.named(span::PROCESS_DENOISE) {
        assert_eq!(span.text(attribute::MESSAGING_SYSTEM), Some(value::NATS));
        assert_eq!(span.number(attribute::ATTEMPT), Some(1));
    }
    for span in tree.named(span::DENOISE) {
        let steps = span.events(event::STEP).into_iter();
        let numbers = steps.filter_map(|step| number(&step.attributes, attribute::STEP));
        assert_eq!(numbers.collect::<Vec<_>>(), [1, 2, 3, 4]);
    }
}

/// What is emitted is in the documentation. Log lines within a span are events too, with names of their own and a level.
#[track_caller]
fn assert_documented(spans: &[Captured]) {
    let file = integration::root().join("docs/tracing.md");
    let text = std::fs::read_to_string(file).unwrap();
    let mut names = BTreeSet::new();
    for captured in spans {
        names.insert(captured.name());
        let attributes = captured.span.attributes.iter();
        names.extend(attributes.map(|attribute| attribute.key.as_str()));
        for event in &captured.span.events {
            let keys = event.attributes.iter().map(|attribute| &*attribute.key);
            if !keys.clone().any(|key| key == "level") {
                names.insert(&event.name);
                names.extend(keys);
            }
        }
    }
    let named = |name: &&str| text.contains(&format!("`{name}`"));
    let undocumented: Vec<_> = names.into_iter().filter(|name| !named(name)).collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");
}

#[tokio::test]
async fn an_attempt_that_is_lost_to_kill_9_is_an_error_in_the_trace() {
    let collector = Collector::start().await;
    let mut fleet = fleet(SLOW, 2, exporting(&collector.url(), "grpc")).await;
    let (gateway, request) = (fleet.gateway.clone(), fox(30));
    let url = format!("{gateway}/v1/images/generations");
    let client = Client::new().post(url).header("traceparent", SAMPLED);
    let job = JoinSet::from_iter([client.json(&request).send()]);
    let (dead, _) = fleet.until_painting().await;
    let workers = fleet.bus.workers().await.unwrap();
    let process = fleet.denoisers[dead].id();
    let worker = workers.iter().find(|worker| worker.process == process);
    let worker = worker.unwrap().worker.to_string();
    fleet.denoisers[dead].kill();
    job.join_all().await.remove(0).unwrap();

    let tree = tree_of(&collector, TRACE, 1).await;
    let lost = tree.only(span::LOST_ATTEMPT);
    assert!(lost.failed());
    assert_eq!(lost.text(attribute::WORKER), Some(worker.as_str()));
    assert_eq!(lost.text(attribute::ERROR_TYPE), Some(value::WORKER_LOST));
    assert_eq!(lost.number(attribute::ATTEMPT), Some(1));
    let next = tree.only(span::PROCESS_DENOISE);
    assert_eq!(next.number(attribute::ATTEMPT), Some(2));
    assert!(!next.failed());
    assert_eq!(tree.ancestry(lost), tree.ancestry(next), "{}", tree.shown());
    assert!(lost.interval().0 < next.interval().0);
}

#[tokio::test]
async fn a_failure_is_an_error_of_its_attempts_and_a_cancelled_job_is_none() {
    let collector = Collector::start().await;
    let fleet = fleet(SLOW, 2, exporting(&collector.url(), "grpc")).await;
    fleet.script(&[Rule {
        prompt_contains: "poison".into(),
        stage: FaultStage::Denoise,
        fault: Fault::Fail,
    }]);
    let mut poison = fox(1);
    poison["prompt"] = json!("a poison");
    let failed = generate_in(&fleet, SAMPLED, &poison).await;
    assert_eq!(failed.error().0, "attempts_exhausted");
    let tree = collector
        .until("the trace is whole", |spans| {
            let tree = Tree::of(spans, TRACE);
            (tree.named(span::JOB).len() == 1).then_some(tree)
        })
        .await;
    assert!(tree.only(SERVER).failed());
    let job = tree.only(span::JOB);
    assert!(job.failed());
    let code = job.text(attribute::ERROR_TYPE);
    assert_eq!(code, Some("attempts_exhausted"));
    let attempts = collector
        .until("every attempt is there", |spans| {
            let tree = Tree::of(spans, TRACE);
            let attempts = tree.named(span::PROCESS_DENOISE);
            let attempts = attempts.into_iter().filter(|span| span.failed());
            let codes = attempts.filter_map(|span| span.text(attribute::ERROR_TYPE));
            let codes: Vec<_> = codes.map(str::to_owned).collect();
            (codes.len() == 4).then_some(codes)
        })
        .await;
    let count = |code| attempts.iter().filter(|other| *other == code).count();
    // Three tries, and the one that gave it up.
    assert_eq!(
        (count("denoise_failed"), count("attempts_exhausted")),
        (3, 1)
    );

    let api = Api::new(&fleet.gateway);
    let cancelled = api.submit(&fox(100)).await;
    fleet.until_painting().await;
    api.cancel(&cancelled).await;
    collector
        .until("the cancelled job's spans are there", |spans| {
            let of_job = |span: &&Captured| span.text(attribute::JOB_ID) == Some(&cancelled);
            let spans: Vec<_> = spans.iter().filter(of_job).collect();
            let ended = [span::JOB, span::PROCESS_DENOISE];
            let all = ended.map(|name| spans.iter().any(|span| span.name() == name));
            assert!(spans.iter().all(|span| !span.failed()), "{spans:?}");
            (all == [true, true]).then_some(())
        })
        .await;
}

#[tokio::test]
async fn the_stages_of_a_job_add_up_to_its_whole_time() {
    let collector = Collector::start().await;
    let fleet = fleet(SLOW, 1, exporting(&collector.url(), "grpc")).await;
    // Of ten seconds 2 % are what a loaded machine may take between two stages.
    let answer = generate_in(&fleet, SAMPLED, &fox(100)).await;
    assert_eq!(answer.data().len(), 1);
    let tree = tree_of(&collector, TRACE, 1).await;
    let took = |name| tree.only(name).seconds();
    let between = |earlier, later| {
        let (end, start) = (
            tree.only(earlier).interval().1,
            tree.only(later).interval().0,
        );
        // The consumer may have it before its producer is told that it is stored.
        (start - end).max(0.0)
    };
    let stages = [
        span::PUBLISH_AR,
        span::AR_WAIT,
        span::AR_RUN,
        span::AR_SETTLE,
        span::CLAIM,
        span::PREPARE,
        span::DENOISE,
        span::VAE_DECODE,
        span::ENCODE,
        span::STORE,
    ];
    let queues = [
        (span::PUBLISH_AR, span::PROCESS_AR),
        (span::PUBLISH_DENOISE, span::PROCESS_DENOISE),
    ];
    let runs: f64 = stages.map(took).iter().sum();
    let waits: f64 = queues.map(|(from, to)| between(from, to)).iter().sum();
    let whole = took(SERVER);
    let share = (runs + waits) / whole;
    println!("{runs:.3} s run, {waits:.3} s waited, {whole:.3} s whole: {share:.4}");
    assert!((0.98..=1.02).contains(&share), "{share}\n{}", tree.shown());
}

/// What the emulation of Tempo makes of spans once no half of an edge has anything to wait for.
fn service_graph(spans: &[Captured]) -> Processor {
    let mut processor = Processor::new(Config::shipped());
    let now = Instant::now();
    // As if each came when it began: processes send theirs once a second, in any order.
    let mut spans: Vec<_> = spans.iter().collect();
    spans.sort_by_key(|captured| captured.span.start_time_unix_nano);
    for span in spans {
        processor.push(span, now);
    }
    processor.expire(Duration::ZERO, now);
    processor
}

#[tokio::test]
async fn a_service_graph_has_every_edge_and_no_span_without_its_other_end() {
    let collector = Collector::start().await;
    let mut fleet = fleet(QUICK, 2, exporting(&collector.url(), "http/protobuf")).await;
    for n in [1, 3] {
        let mut request = fox(2);
        request["n"] = json!(n);
        let answer = http::generate(&fleet.gateway, &request).await;
        assert_eq!(answer.data().len(), n);
    }
    fleet.until_queues_empty().await;
    fleet.terminate().await;
    let graph = service_graph(&collector.spans());
    assert_eq!(graph.expired().len(), 0, "{:?}", graph.expired());
    let wanted = [
        ["fresco-ar-batcher", "fresco-denoiser", "messaging_system"],
        ["fresco-gateway", "fresco-ar-batcher", "messaging_system"],
        ["user", "fresco-gateway", "virtual_node"],
    ];
    assert_eq!(graph.edges(), wanted);
}

/// What the tiny checkpoint's engine draws from.
const TINY_CODEBOOK: u32 = 512;

#[tokio::test]
async fn a_message_that_comes_again_is_half_an_edge_and_an_engine_without_spans_a_whole_one() {
    let collector = Collector::start().await;
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let setup = Setup::new(Times::new(QUICK, 1.0).unwrap(), TINY_CODEBOOK);
    let server = FakeSrt::start(anywhere, setup).await.unwrap();
    let mut fleet = Fleet::start(Size {
        denoisers: 2,
        ack_wait: REPLAY_ACK_WAIT,
        engine: Engine::Srt {
            urls: vec![server.url()],
            table: QUICK,
        },
        shell_flags: exporting(&collector.url(), "grpc"),
        ..Size::default()
    })
    .await;
    fleet.script(&[Rule {
        prompt_contains: "poison".into(),
        stage: FaultStage::Denoise,
        fault: Fault::Fail,
    }]);
    let mut poison = fox(1);
    poison["prompt"] = json!("a poison");
    let failed = http::generate(&fleet.gateway, &poison).await;
    assert_eq!(failed.error().0, "attempts_exhausted");
    fleet.until_queues_empty().await;
    fleet.terminate().await;
    let spans = collector.spans();
    let graph = service_graph(&spans);
    let engine = ["fresco-ar-batcher", "127.0.0.1", "virtual_node"];
    assert!(graph.edges().contains(&engine), "{:?}", graph.edges());
    let again = graph.expired().iter().map(|edge| edge.server.as_ref());
    let again: Vec<_> = again.map(|span| span.unwrap().name()).collect();
    let attempts = spans
        .iter()
        .filter(|span| span.name() == span::PROCESS_DENOISE);
    assert!(attempts.count() > 2);
    // All that come after the first are the same half.
    assert_eq!(again, [span::PROCESS_DENOISE]);
}
