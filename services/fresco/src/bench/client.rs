//! Asks a gateway as a load wants it, and keeps the record. One task: many connections, little work on each.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use replay::SplitMix64;
use reqwest::Client;
use serde::Deserialize;
use serde_json::json;
use service::exit::{Failure, chain};
use tokio::time::{Instant, sleep_until};

use super::{
    load::Load,
    summary::{Answered, Busy, Edge, Record, Recorder},
};
use crate::{
    args::BenchRunArgs,
    generate::client::{Timings, headers},
};

/// The part of the gateway's answer that is of interest.
#[derive(Debug, Deserialize)]
struct Answer {
    data: Vec<Picture>,
}

#[derive(Debug, Deserialize)]
struct Picture {
    timings: Timings,
}

/// A gateway, asked for whole pictures.
pub(crate) struct Asker {
    url: String,
    http: Client,
    /// Seconds of the wall for a second of the table.
    time_scale: f64,
    /// In every prompt.
    nonce: u64,
}

/// Of this run alone: a gateway that keeps prior tokens finds none of an earlier run's.
pub(crate) fn nonce(seed: u64) -> u64 {
    SplitMix64::new(seed ^ service::clock::unix_millis()).draw()
}

impl Asker {
    pub(crate) fn new(gateway: &str, args: &BenchRunArgs, nonce: u64) -> Result<Self, Failure> {
        // No proxy: gateways are called by their own address, loopback above all.
        let http = Client::builder()
            .default_headers(headers(args.api_key_file.as_ref())?)
            .no_proxy()
            .build();
        Ok(Self {
            url: format!("{}/v1/images/generations", gateway.trim_end_matches('/')),
            http: http.map_err(|error| Failure::failed(&error))?,
            time_scale: args.time_scale,
            nonce,
        })
    }

    /// Returns when all is answered. `at_edge` hears when what counts begins and ends.
    pub(crate) async fn ask(&self, load: &Load, mut at_edge: impl FnMut(Edge)) -> Record {
        let start = Instant::now();
        let schedule = load.schedule();
        let mut recorder = Recorder::new(load);
        let mut asked = FuturesUnordered::new();
        for _ in 0..load.at_once() {
            asked.extend(
                recorder
                    .send()
                    .map(|request| self.one(load, request, start)),
            );
        }
        let mut arrivals = schedule.iter();
        let mut next = arrivals.next();
        loop {
            let arrives_at = next.map(|at| start + at.mul_f64(self.time_scale));
            tokio::select! {
                Some(answer) = asked.next(), if !asked.is_empty() => {
                    recorder.answer(answer);
                    if schedule.is_empty() {
                        asked.extend(recorder.send().map(|request| self.one(load, request, start)));
                    }
                }
                () = sleep_until(arrives_at.unwrap_or(start)), if arrives_at.is_some() => {
                    next = arrivals.next();
                    asked.extend(recorder.send().map(|request| self.one(load, request, start)));
                }
                else => return recorder.finish(),
            }
            if let Some(edge) = recorder.edge(self.since(start)) {
                at_edge(edge);
            }
        }
    }

    /// In the table's time.
    fn since(&self, start: Instant) -> Duration {
        start.elapsed().div_f64(self.time_scale)
    }

    async fn one(&self, load: &Load, request: usize, start: Instant) -> Answered {
        let sent_at = self.since(start);
        let body = json!({
            "prompt": format!("picture {request} of {:016x}", self.nonce),
            "n": load.n,
            "size": load.size(request),
            "seed": load.seed + request as u64,
            "num_inference_steps": load.steps,
            "response_format": "b64_json",
        });
        let outcome = self.answer(&body).await;
        let outcome = outcome.and_then(|answer| self.busy(&answer, load.n));
        Answered {
            request,
            sent_at,
            at: self.since(start),
            outcome,
        }
    }

    async fn answer(&self, body: &serde_json::Value) -> Result<Answer, String> {
        let told = |error: reqwest::Error| chain(&error.without_url());
        let answer = self
            .http
            .post(&self.url)
            .json(body)
            .send()
            .await
            .map_err(told)?;
        if !answer.status().is_success() {
            return Err(answer.status().to_string());
        }
        let bytes = answer.bytes().await.map_err(told)?;
        serde_json::from_slice(&bytes).map_err(|error| error.to_string())
    }

    fn busy(&self, answer: &Answer, n: u8) -> Result<Busy, String> {
        if answer.data.len() != usize::from(n) {
            return Err(format!("{} pictures of {n}", answer.data.len()));
        }
        let of_table = |ms: u64| Duration::from_millis(ms).div_f64(self.time_scale);
        let mut busy = Busy::default();
        for Picture { timings } in &answer.data {
            busy.ar += of_table(timings.ar_run_ms.unwrap_or(0));
            let paint = timings.denoise_run_ms.unwrap_or(0) + timings.decode_run_ms.unwrap_or(0);
            busy.denoise += of_table(paint);
        }
        Ok(busy)
    }
}

/// Reason → how often, for people.
pub(crate) fn failures(record: &Record) -> BTreeMap<&str, usize> {
    let mut failures = BTreeMap::new();
    for answer in &record.answers {
        if let Err(reason) = &answer.outcome {
            *failures.entry(reason.as_str()).or_default() += 1;
        }
    }
    failures
}
