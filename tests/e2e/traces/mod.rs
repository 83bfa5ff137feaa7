//! Spans at a real collector: whole trees, of every role, whatever happens to processes and collectors.

mod attempts;
mod attributes;
mod context;
mod export;
mod graph;
mod metrics;
mod refused;
mod tree;

use integration::{
    TINY_CODEBOOK_SIZE,
    fleet::{Engine, Fleet, QUICK, REPLAY_ACK_WAIT, Size},
    http::Answer,
    otlp::{Captured, Collector, Tree},
    srt::{FakeSrt, Setup},
};
use protocol::trace::{attribute, span, value};
use replay::{ArTimes, DenoiseTimes, Table, Times};
use reqwest::Client;
use serde_json::{Value, json};

/// The trace that a client started, and whether it is to be sampled.
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

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

/// The same, quick and with an SRT server for its AR stage.
async fn srt_fleet(denoisers: usize, shell_flags: Vec<String>) -> (FakeSrt, Fleet) {
    let setup = Setup::new(Times::new(QUICK, 1.0).unwrap(), TINY_CODEBOOK_SIZE);
    let server = FakeSrt::start_anywhere(setup).await.unwrap();
    let fleet = Fleet::start(Size {
        denoisers,
        ack_wait: REPLAY_ACK_WAIT,
        engine: Engine::Srt {
            urls: vec![server.url()],
            table: QUICK,
        },
        shell_flags,
        ..Size::default()
    })
    .await;
    fleet.script(&[]);
    (server, fleet)
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
