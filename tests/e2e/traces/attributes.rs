//! What each span carries: what OpenTelemetry's conventions 1.44 require of its kind, and what leads from it to the
//! message, the server or the answer that it is of.

use std::collections::BTreeSet;

use integration::{
    TINY_CODEBOOK_SIZE,
    dashboards::dashboards,
    fleet::{Engine, Fleet, REPLAY_ACK_WAIT, Size},
    http,
    otlp::{Captured, Collector, Tree, value as raw},
    srt::{FakeSrt, Fault, Rule, Setup},
};
use opentelemetry_proto::tonic::common::v1::any_value::Value as Raw;
use protocol::{
    PriorityClass, Role, Tenant,
    trace::{attribute, span, value},
};
use replay::Times;
use serde_json::{Value, json};

use super::{QUICK, SAMPLED, SERVER, TRACE, exporting, fox, generate_in, tree_of};

/// What an attribute is held to.
enum Is {
    Text(String),
    Number(i64),
    OneOf(Vec<i64>),
    /// A whole number above 0 that nobody knows beforehand.
    Counted,
}

type Wanted = Vec<(&'static str, Is)>;

fn text(text: impl Into<String>) -> Is {
    Is::Text(text.into())
}

/// A fleet with an SRT server before which somebody needs a password, and whose first call fails.
async fn guarded(collector: &Collector) -> (FakeSrt, Fleet) {
    let setup = Setup::new(Times::new(QUICK, 1.0).unwrap(), TINY_CODEBOOK_SIZE);
    let server = FakeSrt::start_anywhere(setup).await.unwrap();
    server.script(&[Rule {
        seed: None,
        times: Some(1),
        fault: Fault::ServerError,
    }]);
    let url = format!("http://user:secret@{}", server.address());
    let fleet = Fleet::start(Size {
        denoisers: 1,
        ack_wait: REPLAY_ACK_WAIT,
        engine: Engine::Srt {
            urls: vec![url],
            table: QUICK,
        },
        shell_flags: exporting(&collector.url(), "grpc"),
        ..Size::default()
    })
    .await;
    (server, fleet)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_span_carries_what_the_conventions_require_of_its_kind() {
    let collector = Collector::start().await;
    let (server, fleet) = guarded(&collector).await;
    let answer = generate_in(&fleet, SAMPLED, &fox(2)).await;
    let (job, usage) = (answer.id(), answer.body["usage"].clone());
    let tree = tree_of(&collector, TRACE, 1).await;

    for (name, wanted) in [
        (SERVER, of_request(&job)),
        (span::JOB, of_job(&job, &usage)),
        (span::PUBLISH_AR, sent(&fleet, Queue::Ar, &job)),
        (span::PROCESS_AR, taken(&fleet, Queue::Ar, &job)),
        (span::PUBLISH_DENOISE, sent(&fleet, Queue::Denoise, &job)),
        (span::PROCESS_DENOISE, taken(&fleet, Queue::Denoise, &job)),
        (
            span::AR_BATCH,
            vec![(attribute::MESSAGING_BATCH_MESSAGE_COUNT, Is::Number(1))],
        ),
    ] {
        holds(tree.only(name), &wanted);
    }
    // A message has one place, whoever looks at it.
    for (from, to) in [
        (span::PUBLISH_AR, span::PROCESS_AR),
        (span::PUBLISH_DENOISE, span::PROCESS_DENOISE),
    ] {
        let place = |name| {
            let sequence = attribute::MESSAGING_NATS_STREAM_SEQUENCE;
            tree.only(name).number(sequence)
        };
        assert_eq!(place(from), place(to));
    }
    assert_calls(&tree, server.address().port());
    let of_job = tree.only(span::JOB).text(attribute::JOB_ID).unwrap();
    let page = http::get(&page(&fleet.gateway, of_job)).await;
    assert_eq!((page.status.as_u16(), page.id()), (200, job));
    assert_no_secret(&collector.spans());
}

/// What a click on a job's id opens, in the table whose rows are spans of jobs: a table within a table has no links.
fn page(gateway: &str, job: &str) -> String {
    let tracing = dashboards().into_iter().find(|d| d.file == "tracing.json");
    let panels = tracing.unwrap().panels().into_iter();
    let mut links = panels.flat_map(|panel| {
        let target = &panel.json["targets"][0];
        let selected = format!("span.{}", attribute::JOB_ID);
        let query = target["query"].as_str().unwrap_or_default();
        let is_of_jobs = target["tableType"] == "spans" && query.contains(&selected);
        let overrides = panel.json["fieldConfig"]["overrides"].as_array().cloned();
        // A column is called as its attribute, without the scope.
        let wanted = json!({ "id": "byName", "options": attribute::JOB_ID });
        let of_id = overrides.unwrap().into_iter();
        let of_id = of_id.filter(move |column| is_of_jobs && column["matcher"] == wanted);
        of_id.map(|column| column["properties"][0]["value"][0]["url"].clone())
    });
    let link = links.next().expect("a table of jobs leads to them");
    let link = link.as_str().unwrap().replace("${gateway:raw}", gateway);
    link.replace("${__value.raw}", job)
}

fn of_request(job: &str) -> Wanted {
    vec![
        (attribute::HTTP_REQUEST_METHOD, text("POST")),
        (attribute::HTTP_ROUTE, text("/v1/images/generations")),
        (attribute::HTTP_RESPONSE_STATUS_CODE, Is::Number(200)),
        (attribute::URL_PATH, text("/v1/images/generations")),
        (attribute::URL_SCHEME, text(value::HTTP)),
        (attribute::JOB_ID, text(job)),
        (attribute::TENANT, text(Tenant::NONE)),
    ]
}

fn of_job(job: &str, usage: &Value) -> Wanted {
    let tokens = |name: &str| Is::Number(usage[name].as_i64().unwrap());
    vec![
        (attribute::GEN_AI_PROVIDER_NAME, text(value::FRESCO)),
        (
            attribute::GEN_AI_OPERATION_NAME,
            text(value::GENERATE_CONTENT),
        ),
        (attribute::GEN_AI_REQUEST_MODEL, text("glm-image")),
        (attribute::GEN_AI_OUTPUT_TYPE, text(value::IMAGE)),
        (attribute::GEN_AI_REQUEST_CHOICE_COUNT, Is::Number(1)),
        (attribute::GEN_AI_USAGE_INPUT_TOKENS, tokens("input_tokens")),
        (
            attribute::GEN_AI_USAGE_OUTPUT_TOKENS,
            tokens("output_tokens"),
        ),
        (attribute::JOB_ID, text(job)),
        (attribute::STEPS, Is::Number(2)),
        (attribute::TENANT, text(Tenant::NONE)),
    ]
}

#[derive(Clone, Copy, PartialEq)]
enum Queue {
    Ar,
    Denoise,
}

/// Of a message of the job, on both sides.
fn message(fleet: &Fleet, queue: Queue, job: &str) -> Wanted {
    let (prefix, topology) = (fleet.broker.prefix(), fleet.bus.topology());
    let class = PriorityClass::default();
    let (template, subject, id, stream) = match queue {
        Queue::Ar => (
            value::AR_TEMPLATE,
            format!("{prefix}.ar.{class}.{job}"),
            job.to_owned(),
            &topology.ar,
        ),
        Queue::Denoise => (
            value::DENOISE_TEMPLATE,
            format!("{prefix}.dn.{class}.{job}.0"),
            format!("{job}.0"),
            &topology.denoise,
        ),
    };
    let mut wanted = vec![
        (attribute::MESSAGING_SYSTEM, text(value::NATS)),
        (attribute::MESSAGING_DESTINATION_NAME, text(subject)),
        (attribute::MESSAGING_DESTINATION_TEMPLATE, text(template)),
        (attribute::MESSAGING_MESSAGE_ID, text(id)),
        (attribute::MESSAGING_NATS_STREAM, text(&stream.name)),
        (attribute::MESSAGING_NATS_STREAM_SEQUENCE, Is::Counted),
        (attribute::SERVER_ADDRESS, text("127.0.0.1")),
        (attribute::SERVER_PORT, Is::OneOf(ports(fleet))),
        (attribute::JOB_ID, text(job)),
        (attribute::CLASS, text(class.to_string())),
    ];
    if queue == Queue::Denoise {
        wanted.push((attribute::OUTPUT_INDEX, Is::Number(0)));
    }
    wanted
}

/// Of the broker's servers.
fn ports(fleet: &Fleet) -> Vec<i64> {
    let urls = &fleet.broker.flags(Role::Gateway)[1];
    let port = |url: &str| url.rsplit_once(':').unwrap().1.parse().unwrap();
    urls.split(',').map(port).collect()
}

fn sent(fleet: &Fleet, queue: Queue, job: &str) -> Wanted {
    let mut wanted = message(fleet, queue, job);
    wanted.push((attribute::MESSAGING_OPERATION_NAME, text(value::PUBLISH)));
    wanted.push((attribute::MESSAGING_OPERATION_TYPE, text(value::SEND)));
    wanted
}

fn taken(fleet: &Fleet, queue: Queue, job: &str) -> Wanted {
    let topology = fleet.bus.topology();
    let consumer = match queue {
        Queue::Ar => {
            let mut of_class = topology.ar_consumers.iter();
            let class = PriorityClass::default().to_string();
            of_class.find(|spec| spec.name.contains(&class)).unwrap()
        }
        Queue::Denoise => &topology.denoise_consumer,
    };
    let mut wanted = message(fleet, queue, job);
    wanted.extend([
        (attribute::MESSAGING_OPERATION_NAME, text(value::PROCESS)),
        (attribute::MESSAGING_OPERATION_TYPE, text(value::PROCESS)),
        (
            attribute::MESSAGING_CONSUMER_GROUP_NAME,
            text(&consumer.name),
        ),
        (attribute::MESSAGING_NATS_DELIVERED_COUNT, Is::Number(1)),
    ]);
    if queue == Queue::Ar {
        wanted.push((attribute::TENANT, text(Tenant::NONE)));
    }
    wanted
}

/// The first is refused and made again.
#[track_caller]
fn assert_calls(tree: &Tree, port: u16) {
    let calls = tree.named(span::SRT_GENERATE);
    let of = |status: i64| {
        vec![
            (attribute::HTTP_REQUEST_METHOD, text("POST")),
            (attribute::HTTP_RESPONSE_STATUS_CODE, Is::Number(status)),
            (
                attribute::URL_FULL,
                text(format!("http://127.0.0.1:{port}/generate")),
            ),
            (attribute::SERVER_ADDRESS, text("127.0.0.1")),
            (attribute::SERVER_PORT, Is::Number(port.into())),
            (attribute::SERVICE_PEER_NAME, text(value::SRT)),
        ]
    };
    let [first, second] = calls[..] else {
        panic!("{}", tree.shown());
    };
    holds(first, &of(500));
    holds(first, &[(attribute::ERROR_TYPE, text("500"))]);
    assert_eq!(first.number(attribute::HTTP_REQUEST_RESEND_COUNT), None);
    holds(second, &of(200));
    let again = (attribute::HTTP_REQUEST_RESEND_COUNT, Is::Number(1));
    holds(second, &[again]);
    assert_eq!(second.text(attribute::ERROR_TYPE), None);
}

#[track_caller]
fn holds(captured: &Captured, wanted: &[(&str, Is)]) {
    let (name, attributes) = (captured.name(), &captured.span.attributes);
    for (attribute, is) in wanted {
        let found = raw(attributes, attribute);
        let as_wanted = match (is, found) {
            (Is::Text(wanted), Some(Raw::StringValue(found))) => found == wanted,
            (Is::Number(wanted), Some(Raw::IntValue(found))) => found == wanted,
            (Is::OneOf(wanted), Some(Raw::IntValue(found))) => wanted.contains(found),
            (Is::Counted, Some(Raw::IntValue(found))) => *found > 0,
            _ => false,
        };
        assert!(as_wanted, "{attribute} of {name} is {found:?}");
    }
    let keys: Vec<_> = attributes.iter().map(|one| &one.key).collect();
    let once: BTreeSet<_> = keys.iter().collect();
    assert_eq!(once.len(), keys.len(), "{name}: {keys:?}");
}

/// An address may have one in it.
#[track_caller]
fn assert_no_secret(spans: &[Captured]) {
    let shown = format!("{spans:?}");
    assert!(!shown.contains("secret"));
    assert!(shown.contains("/generate"));
}
