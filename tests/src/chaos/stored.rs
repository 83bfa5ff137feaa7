//! What the broker has at the end of a run, read past our own code.

use std::collections::BTreeMap;

use async_nats::jetstream::stream::Stream;
use messaging::{Bus, Queues};
use protocol::{
    AttemptOutcome, DeadLetter, ErrorCode, JobId, OutputId, OutputResult, Prefix, Subject, decode,
    topology::Topology,
};
use serde_json::{Value, json};

use crate::cluster;

/// A stored result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredResult {
    /// Messages under its subject.
    pub messages: u64,
    /// The picture, or why there is none.
    pub outcome: Result<Vec<u8>, ErrorCode>,
    /// When the broker stored it, in milliseconds of Unix time.
    pub at_ms: i128,
}

/// Everything that an audit looks at.
#[derive(Debug, Clone, Default)]
pub struct Stored {
    /// Accepted jobs, and when the broker stored their records.
    pub jobs: BTreeMap<JobId, i128>,
    /// Results.
    pub results: BTreeMap<OutputId, StoredResult>,
    /// Outputs given up, and whether an engine ever said that it failed at them.
    pub dead: BTreeMap<OutputId, bool>,
    /// Messages left in the queues, whatever their consumers say.
    pub left: u64,
    /// What their consumers say.
    pub queues: Queues,
}

/// Reads it all. Panics when the broker does not answer: then there is nothing to audit.
pub async fn read(urls: &[String], bus: &Bus, prefix: &Prefix) -> Stored {
    let context = cluster::jetstream(urls).await.expect("the broker runs");
    let client = cluster::client(urls).await.expect("the broker runs");
    let topology = Topology::new(prefix);
    let records = format!("KV_{}", topology.jobs.name);
    let stream = async |name: &str| context.get_stream(name).await.expect("the stream is there");
    let (records_stream, results_stream) =
        (stream(&records).await, stream(&topology.results.name).await);

    let mut stored = Stored::default();
    for subject in subjects(&client, &records).await.into_keys() {
        let job = subject.rsplit('.').next().and_then(|job| job.parse().ok());
        let (at_ms, _) = message(&records_stream, &subject).await;
        stored
            .jobs
            .insert(job.expect("a job's key is its id"), at_ms);
    }
    for (subject, messages) in subjects(&client, &topology.results.name).await {
        let Ok(Subject::Result(output)) = prefix.parse(&subject) else {
            panic!("{subject} among the results")
        };
        let (at_ms, payload) = message(&results_stream, &subject).await;
        let result: OutputResult = decode(&payload).expect("a result of this version");
        let outcome = result.outcome.map(|image| image.bytes);
        let outcome = outcome.map_err(|error| error.code);
        let result = StoredResult {
            messages,
            outcome,
            at_ms,
        };
        stored.results.insert(output, result);
    }
    for letter in bus.dead_letters().await.expect("the broker runs") {
        stored.dead.insert(letter.output, engine_failed(&letter));
    }
    for queue in [&topology.ar.name, &topology.denoise.name] {
        let info = cluster::info(&client, queue, json!({})).await;
        let info = info.expect("the queue is there");
        stored.left += info["state"]["messages"].as_u64().expect("a number");
    }
    stored.queues = bus.queues().await.expect("the broker runs");
    stored
}

fn engine_failed(letter: &DeadLetter) -> bool {
    let failed = |outcome: &AttemptOutcome| matches!(outcome, AttemptOutcome::Failed(_));
    letter
        .attempts
        .iter()
        .any(|attempt| attempt.outcome.as_ref().is_some_and(failed))
}

/// Every subject of a stream and its messages.
async fn subjects(client: &async_nats::Client, stream: &str) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    loop {
        let request = json!({ "subjects_filter": ">", "offset": all.len() });
        let info = cluster::info(client, stream, request).await;
        let info = info.expect("the stream is there");
        let page = info["state"]["subjects"].as_object().cloned();
        let page = page.unwrap_or_default();
        if page.is_empty() {
            return all;
        }
        let count = |count: Value| count.as_u64().expect("a number");
        all.extend(page.into_iter().map(|(subject, n)| (subject, count(n))));
        if info["total"]
            .as_u64()
            .is_none_or(|total| all.len() as u64 >= total)
        {
            return all;
        }
    }
}

/// The last message of a subject, and when it was stored.
async fn message(stream: &Stream, subject: &str) -> (i128, Vec<u8>) {
    let message = stream.direct_get_last_for_subject(subject).await;
    let message = message.unwrap_or_else(|error| panic!("{subject}: {error}"));
    (
        message.time.unix_timestamp_nanos() / 1_000_000,
        message.payload.to_vec(),
    )
}
