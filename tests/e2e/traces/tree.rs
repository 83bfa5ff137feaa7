//! A job's spans are one tree: every stage in its place, and the stages add up.

use std::collections::BTreeSet;

use integration::otlp::{Captured, Collector, Tree, number};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use protocol::{
    Tenant,
    trace::{attribute, event, span, value},
};
use serde_json::json;

use super::{SAMPLED, SERVER, SLOW, TRACE, exporting, fleet, fox, generate_in, tree_of};

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
    for span in [server, tree.only(span::JOB)] {
        assert_eq!(span.text(attribute::TENANT), Some(Tenant::NONE));
    }
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
