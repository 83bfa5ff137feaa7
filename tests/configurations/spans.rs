//! What becomes of spans on their way to Tempo: what is counted, what is kept, and what the panels say of it.

use std::collections::BTreeSet;

use integration::{
    dashboards::dashboards,
    otlp::{Filter, Seen},
    tempo,
};
use protocol::{
    ErrorCode,
    trace::{attribute, span},
};
use serde_yaml_ng::Value;

use super::{keys, read, texts};

/// Names of the pipelines that have `component` among their processors, or their exporters.
fn pipelines(collector: &Value, role: &str, component: &str) -> Vec<String> {
    let pipelines = collector["service"]["pipelines"].as_mapping().unwrap();
    let having = pipelines
        .iter()
        .filter(|(_, pipeline)| texts(&pipeline[role]).contains(component));
    having
        .map(|(name, _)| name.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn a_trace_is_judged_when_it_is_whole_and_counted_before() {
    let collector = read("otel-collector/collector.yml");
    let sampling = &collector["processors"]["tail_sampling"];
    let wait = sampling["decision_wait"].as_str().unwrap();
    let wait: u64 = wait.strip_suffix('s').unwrap().parse().unwrap();
    assert!(wait > 600, "a job may take so long");
    let policies = sampling["policies"].as_sequence().unwrap();
    let mut types = BTreeSet::new();
    for policy in policies {
        let kind = policy["type"].as_str().unwrap();
        types.insert(kind);
        let wanted = ["name", "type", kind].map(str::to_owned);
        assert_eq!(
            keys(policy),
            BTreeSet::from(wanted),
            "a section named as its type"
        );
    }
    let wanted = [
        "latency",
        "numeric_attribute",
        "probabilistic",
        "status_code",
    ];
    assert_eq!(types, BTreeSet::from(wanted));
    let of = |kind: &str| {
        policies
            .iter()
            .find(|policy| policy["type"] == kind)
            .unwrap()[kind]
            .clone()
    };
    assert_eq!(of("status_code")["status_codes"][0], "ERROR");
    let redelivered = of("numeric_attribute");
    assert_eq!(
        redelivered["key"],
        attribute::MESSAGING_NATS_DELIVERED_COUNT
    );
    assert_eq!(redelivered["min_value"], 2);
    let connectors = keys(&collector["connectors"]);
    for (name, pipeline) in collector["service"]["pipelines"].as_mapping().unwrap() {
        let counts = !texts(&pipeline["exporters"]).is_disjoint(&connectors);
        let samples = texts(&pipeline["processors"]).contains("tail_sampling");
        assert!(
            !(counts && samples),
            "{name:?} counts what is left of a sample"
        );
    }
}

/// Before spans are judged, and before edges are paired, for both have a limited number of places; and not before they are
/// counted.
#[test]
fn requests_that_say_nothing_of_a_job_take_no_places_and_are_counted() {
    let collector = read("otel-collector/collector.yml");
    let filter = "filter/jobless";
    let filtered = pipelines(&collector, "processors", filter);
    assert_eq!(filtered, ["traces/edges", "traces/kept"]);
    for (role, limited) in [
        ("processors", "tail_sampling"),
        ("exporters", "servicegraph"),
    ] {
        for pipeline in pipelines(&collector, role, limited) {
            let processors = &collector["service"]["pipelines"][&*pipeline]["processors"];
            let processors: Vec<_> = processors.as_sequence().unwrap().iter().collect();
            let at = |name: &str| processors.iter().position(|processor| *processor == name);
            assert!(at(filter).is_some(), "{pipeline}");
            assert!(at(limited).is_none_or(|limited| limited > at(filter).unwrap()));
        }
    }
    for pipeline in pipelines(&collector, "exporters", "spanmetrics") {
        assert!(!filtered.contains(&pipeline), "{pipeline}");
    }
    let filter = Filter::shipped(filter);
    let job = "01890a5d-ac96-774b-bcce-b302099a8057";
    let request = |method, status: i64, job| {
        Seen::new("SPAN_KIND_SERVER", status >= 500)
            .with(attribute::HTTP_REQUEST_METHOD, method)
            .with(attribute::HTTP_RESPONSE_STATUS_CODE, status)
            .with_some(attribute::JOB_ID, job)
    };
    let message = Seen::new("SPAN_KIND_CONSUMER", true).with(attribute::JOB_ID, job);
    let call = |status: i64| {
        Seen::new("SPAN_KIND_CLIENT", true)
            .with(attribute::HTTP_REQUEST_METHOD, "POST")
            .with(attribute::HTTP_RESPONSE_STATUS_CODE, status)
    };
    for (seen, is_left_out) in [
        (request("GET", 200, None), true),
        (request("GET", 200, Some(job)), true),
        (request("HEAD", 200, None), true),
        (request("GET", 404, None), true),
        // Something is wrong with the gateway.
        (request("GET", 500, None), false),
        (request("POST", 400, None), true),
        (request("POST", 401, None), true),
        (request("POST", 429, None), true),
        (request("POST", 503, None), true),
        // It may be queued all the same; it was cancelled.
        (request("POST", 503, Some(job)), false),
        (request("POST", 409, Some(job)), false),
        (request("POST", 200, Some(job)), false),
        (request("POST", 500, Some(job)), false),
        (request("POST", 500, None), false),
        (request("POST", 504, Some(job)), false),
        (request("DELETE", 200, Some(job)), false),
        (message, false),
        (call(503), false),
        (call(429), false),
    ] {
        assert_eq!(filter.leaves_out(&seen), is_left_out, "{seen:?}");
    }
}

/// The request itself is left out as any refusal is: of its job and its message there is to be nothing without it.
#[test]
fn of_a_request_that_a_full_queue_refused_no_span_is_left_and_of_others_each() {
    let filter = Filter::shipped("filter/jobless");
    let job = "01890a5d-ac96-774b-bcce-b302099a8057";
    let not_queued = |code: ErrorCode| {
        let seen = Seen::new("SPAN_KIND_INTERNAL", !code.is_refusal()).named(span::JOB);
        seen.with(attribute::JOB_ID, job)
            .with(attribute::OUTCOME, code.as_str())
    };
    let not_stored = |name, code: ErrorCode| {
        let seen = Seen::new("SPAN_KIND_PRODUCER", true).named(name);
        seen.with(attribute::JOB_ID, job)
            .with(attribute::ERROR_TYPE, code.as_str())
    };
    let followed = Seen::new("SPAN_KIND_INTERNAL", false).named(span::JOB);
    for (seen, is_left_out) in [
        (not_queued(ErrorCode::QueueFull), true),
        (not_stored(span::PUBLISH_AR, ErrorCode::QueueFull), true),
        (not_queued(ErrorCode::BusUnavailable), false),
        (
            not_stored(span::PUBLISH_AR, ErrorCode::BusUnavailable),
            false,
        ),
        (followed.with(attribute::JOB_ID, job), false),
        // Its job goes on: it is published again.
        (
            not_stored(span::PUBLISH_DENOISE, ErrorCode::QueueFull),
            false,
        ),
    ] {
        assert_eq!(filter.leaves_out(&seen), is_left_out, "{seen:?}");
    }
}

/// Seconds of `10m`, `15s`.
fn seconds(duration: &Value) -> u64 {
    let text = duration.as_str().unwrap();
    let (number, unit) = text.split_at(text.len() - 1);
    let number: u64 = number.parse().unwrap();
    match unit {
        "s" => number,
        "m" => 60 * number,
        _ => panic!("{text}"),
    }
}

/// `rate` over `$__rate_interval`, four scrapes, needs a fresh value in each.
#[test]
fn what_is_made_of_spans_is_as_fresh_as_what_is_scraped_and_goes_when_its_process_is_gone() {
    let collector = read("otel-collector/collector.yml");
    let prometheus = read("prometheus/prometheus.yml");
    let scrape = seconds(&prometheus["global"]["scrape_interval"]);
    for connector in keys(&collector["connectors"]) {
        let flush = &collector["connectors"][&*connector]["metrics_flush_interval"];
        assert!(seconds(flush) <= scrape, "{connector}");
    }
    let exporter = &collector["exporters"]["prometheus"];
    let gone = seconds(&exporter["metric_expiration"]);
    assert!((2 * scrape..=60).contains(&gone), "{gone}");
}

#[test]
fn the_collector_pairs_spans_as_tempo_does_and_takes_no_broker_for_a_peer() {
    let collector = read("otel-collector/collector.yml");
    let tempo = read("tempo/tempo.yml");
    let (ours, theirs) = (
        &collector["connectors"]["servicegraph"],
        &tempo["metrics_generator"]["processor"]["service_graphs"],
    );
    assert_eq!(ours["store"]["ttl"], theirs["wait"]);
    assert_eq!(ours["store"]["max_items"], theirs["max_items"]);
    let peers = texts(&theirs["peer_attributes"]);
    assert_eq!(texts(&ours["virtual_node_peer_attributes"]), peers);
    // It is in the spans of messages: one that nobody takes would be an edge, to an address.
    assert!(!peers.contains(attribute::SERVER_ADDRESS));
    assert_eq!(
        peers,
        BTreeSet::from([attribute::SERVICE_PEER_NAME.to_owned()])
    );
}

/// Which version is run, and which one the emulation is of.
#[test]
fn the_tempo_of_the_containers_counts_as_its_emulation_does() {
    let compose = std::fs::read_to_string(integration::root().join("docker/compose.observe.yaml"));
    let compose: Value = serde_yaml_ng::from_str(&compose.unwrap()).unwrap();
    let image = compose["services"]["tempo"]["image"].as_str().unwrap();
    let version = image.rsplit_once(':').unwrap().1;
    let mut numbers = version.split('.').map(|number| number.parse().unwrap());
    let version: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    assert!((tempo::SINCE..tempo::BEFORE).contains(&version), "{image}");
}

/// A query of a panel of Tracing, with the panel's title and description.
fn asked() -> Vec<(String, String, String)> {
    let tracing = dashboards().into_iter().find(|d| d.file == "tracing.json");
    let panels = tracing.unwrap().panels().into_iter();
    panels
        .flat_map(|panel| {
            let text = |field: &str| panel.json[field].as_str().unwrap().to_owned();
            let (title, description) = (text("title"), text("description"));
            let targets = panel.json["targets"].as_array().unwrap().clone();
            targets.into_iter().map(move |target| {
                let query = target["expr"].as_str().or(target["query"].as_str());
                let query = query.unwrap().to_owned();
                (title.clone(), description.clone(), query)
            })
        })
        .collect()
}

/// Tempo leaves out what comes late, and behind a collector that waits everything does.
#[test]
fn the_page_names_the_panels_that_have_no_data_behind_a_collector() {
    let page = std::fs::read_to_string(integration::root().join("observability/README.md"));
    let page = page.unwrap();
    let made_by_tempo = |query: &str| {
        let metrics = ["_messaging_system_", "tempo_metrics_generator"];
        metrics.iter().any(|name| query.contains(name))
            || query.starts_with('{') && query.contains("_over_time(")
    };
    let mut titles = BTreeSet::new();
    for (title, description, query) in asked() {
        if made_by_tempo(&query) {
            assert!(page.contains(&format!("*{title}*")), "{title}");
            assert!(description.contains("collector"), "{title}");
            titles.insert(title);
        }
    }
    let wanted = ["Denoiser by denoiser", "Half edges", "In the queue"];
    assert_eq!(
        titles.iter().map(String::as_str).collect::<Vec<_>>(),
        wanted
    );
}

/// Those to and from whoever sends no spans are only known when the other half has not come.
#[test]
fn a_panel_of_edges_says_how_late_requests_are() {
    let tempo = read("tempo/tempo.yml");
    let wait = seconds(&tempo["metrics_generator"]["processor"]["service_graphs"]["wait"]);
    let minutes = match wait / 60 {
        10 => "ten minutes",
        other => panic!("{other} minutes"),
    };
    let mut seen = 0;
    for (title, description, query) in asked() {
        if query.contains("traces_service_graph_request_total")
            || query.contains("traces_service_graph_request_failed_total")
        {
            assert!(description.contains(minutes), "{title}: {description}");
            seen += 1;
        }
    }
    assert_eq!(seen, 2);
}
