//! The configurations of `observability/`: that they agree with each other, with what we emit, and with the shape that
//! their programs document. None of those programs runs here, but Prometheus. And the broker's unit.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

mod broker;
mod pushed;
mod spans;

use std::{collections::BTreeSet, fs};

use integration::{dashboards::folder, queries::shipped, root};
use protocol::trace::log;
use regex::Regex;
use serde_yaml_ng::{Mapping, Value};

fn read(file: &str) -> Value {
    let text = fs::read_to_string(folder().join(file)).unwrap();
    serde_yaml_ng::from_str(&text).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn keys(mapping: &Value) -> BTreeSet<String> {
    let mapping = mapping.as_mapping().into_iter().flat_map(Mapping::keys);
    mapping
        .map(|key| key.as_str().unwrap().to_owned())
        .collect()
}

fn texts(list: &Value) -> BTreeSet<String> {
    let list = list.as_sequence().into_iter().flatten();
    list.map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// What each program documents as the sections of its configuration, as far as ours have them.
#[test]
fn every_section_is_one_that_its_program_documents() {
    let documented: [(&str, &[&str]); 4] = [
        (
            "tempo/tempo.yml",
            &[
                "server",
                "distributor",
                "compactor",
                "storage",
                "metrics_generator",
                "overrides",
                "usage_report",
            ],
        ),
        (
            "loki/loki.yml",
            &[
                "auth_enabled",
                "server",
                "common",
                "schema_config",
                "compactor",
                "limits_config",
                "analytics",
            ],
        ),
        (
            "otel-collector/collector.yml",
            &[
                "receivers",
                "processors",
                "connectors",
                "exporters",
                "service",
            ],
        ),
        (
            "prometheus/prometheus.yml",
            &["global", "rule_files", "alerting", "scrape_configs"],
        ),
    ];
    for (file, sections) in documented {
        let sections: BTreeSet<_> = sections.iter().map(ToString::to_string).collect();
        assert_eq!(keys(&read(file)), sections, "{file}");
    }
}

#[test]
fn each_component_of_the_collector_is_in_a_pipeline_and_each_in_a_pipeline_is_there() {
    let collector = read("otel-collector/collector.yml");
    let pipelines = collector["service"]["pipelines"].as_mapping().unwrap();
    let used = |kind: &str| -> BTreeSet<String> {
        pipelines
            .values()
            .flat_map(|pipeline| texts(&pipeline[kind]))
            .collect()
    };
    let connectors = keys(&collector["connectors"]);
    for kind in ["receivers", "processors", "exporters"] {
        let mut there = keys(&collector[kind]);
        if kind != "processors" {
            there.extend(connectors.iter().cloned());
        }
        assert_eq!(used(kind), there, "{kind}");
    }
    // What comes out of a pipeline is what it is named after.
    for (name, pipeline) in pipelines {
        let signal = name.as_str().unwrap().split('/').next().unwrap();
        assert!(["traces", "metrics", "logs"].contains(&signal), "{signal}");
        let processors = &pipeline["processors"];
        assert_eq!(
            processors[0], "memory_limiter",
            "first, so that it can refuse"
        );
    }
}

/// A collector has a path for what some pipeline takes, and for nothing else.
#[test]
fn what_our_processes_send_by_otlp_is_taken() {
    let collector = read("otel-collector/collector.yml");
    let pipelines = collector["service"]["pipelines"].as_mapping().unwrap();
    for signal in ["traces", "metrics"] {
        let taken = pipelines.iter().any(|(name, pipeline)| {
            name.as_str().unwrap().starts_with(signal)
                && texts(&pipeline["receivers"]).contains("otlp")
        });
        assert!(taken, "{signal}");
    }
}

#[test]
fn programs_meet_each_other_at_the_ports_that_they_listen_on() {
    let collector = read("otel-collector/collector.yml");
    let tempo = read("tempo/tempo.yml");
    let loki = read("loki/loki.yml");
    let otlp = |receivers: &Value| {
        ["grpc", "http"].map(|protocol| {
            let endpoint = receivers["otlp"]["protocols"][protocol]["endpoint"].as_str();
            endpoint.unwrap().rsplit_once(':').unwrap().1.to_owned()
        })
    };
    let number = |value: &Value| value.as_u64().unwrap().to_string();
    let mut listens: BTreeSet<(&str, String)> = BTreeSet::new();
    listens.extend(otlp(&tempo["distributor"]["receivers"]).map(|port| ("tempo", port)));
    listens.insert(("tempo", number(&tempo["server"]["http_listen_port"])));
    listens.insert(("loki", number(&loki["server"]["http_listen_port"])));
    // The defaults of these two.
    listens.insert(("prometheus", "9090".to_owned()));
    listens.insert(("alertmanager", "9093".to_owned()));
    listens.extend(otlp(&collector["receivers"]).map(|port| ("otel-collector", port)));
    let exporter = collector["exporters"]["prometheus"]["endpoint"]
        .as_str()
        .unwrap();
    let exporter = exporter.rsplit_once(':').unwrap().1;
    listens.insert(("otel-collector", exporter.to_owned()));
    let hosts = Regex::new(r"\b(tempo|loki|prometheus|alertmanager|otel-collector):(\d+)").unwrap();
    let mut meetings = 0;
    for file in [
        "tempo/tempo.yml",
        "loki/loki.yml",
        "otel-collector/collector.yml",
        "prometheus/prometheus.yml",
        "grafana/provisioning/datasources/fresco.yml",
    ] {
        let text = fs::read_to_string(folder().join(file)).unwrap();
        for found in hosts.captures_iter(&text) {
            let (_, [host, port]) = found.extract();
            assert!(
                listens.contains(&(host, port.to_owned())),
                "{file}: {host}:{port}"
            );
            meetings += 1;
        }
    }
    assert!(meetings >= 8, "{meetings}");
}

#[test]
fn tempo_and_loki_have_what_our_queries_and_promises_need() {
    let tempo = read("tempo/tempo.yml");
    let processors = texts(&tempo["overrides"]["defaults"]["metrics_generator"]["processors"]);
    let sections = keys(&tempo["metrics_generator"]["processor"]);
    let sections: BTreeSet<_> = sections.iter().map(|name| name.replace('_', "-")).collect();
    assert_eq!(processors, sections);
    let counts = |query: &str| query.contains("_over_time(") && query.contains("} |");
    if shipped().iter().any(|asked| counts(&asked.text)) {
        assert!(
            processors.contains("local-blocks"),
            "metrics in TraceQL need it"
        );
        let local = &tempo["metrics_generator"]["processor"]["local_blocks"];
        assert_eq!(local["filter_server_spans"], false, "ours are of messages");
    }
    // By its default the points of what it makes of spans have `traceID`, which no link of ours knows.
    let generator = &tempo["overrides"]["defaults"]["metrics_generator"];
    assert_eq!(generator["trace_id_label_name"], log::TRACE_ID);
    let loki = read("loki/loki.yml");
    assert!(loki["limits_config"]["retention_period"].is_string());
    assert_eq!(loki["compactor"]["retention_enabled"], true);
    assert!(loki["compactor"]["delete_request_store"].is_string());
}

/// By default Tempo, Loki and Grafana each tell their maker how they are used.
#[test]
fn nothing_tells_the_makers_of_programs_how_they_are_used() {
    let off = Value::Bool(false);
    let tempo = read("tempo/tempo.yml");
    assert_eq!(tempo["usage_report"]["reporting_enabled"], off);
    let loki = read("loki/loki.yml");
    assert_eq!(loki["analytics"]["reporting_enabled"], off);
    let compose = fs::read_to_string(root().join("docker/compose.observe.yaml")).unwrap();
    let compose: Value = serde_yaml_ng::from_str(&compose).unwrap();
    let grafana = &compose["services"]["grafana"]["environment"];
    for reports in [
        "GF_ANALYTICS_REPORTING_ENABLED",
        "GF_ANALYTICS_CHECK_FOR_UPDATES",
    ] {
        assert_eq!(grafana[reports], "false", "{reports}");
    }
}

#[test]
fn links_between_data_sources_lead_somewhere() {
    let sources = read("grafana/provisioning/datasources/fresco.yml");
    let sources = sources["datasources"].as_sequence().unwrap();
    let uids: BTreeSet<_> = sources
        .iter()
        .map(|source| source["uid"].as_str().unwrap())
        .collect();
    let named = |kind: &str| {
        sources
            .iter()
            .find(|source| source["type"] == kind)
            .unwrap()
    };
    let (prometheus, tempo, loki) = (named("prometheus"), named("tempo"), named("loki"));
    let exemplars = &prometheus["jsonData"]["exemplarTraceIdDestinations"][0];
    let lines = &loki["jsonData"]["derivedFields"][0];
    for target in [
        exemplars,
        lines,
        &tempo["jsonData"]["serviceMap"],
        &tempo["jsonData"]["tracesToLogsV2"],
        &tempo["jsonData"]["tracesToMetrics"],
    ] {
        let uid = target["datasourceUid"].as_str().unwrap();
        assert!(uids.contains(uid), "{uid}");
    }
    assert_eq!(exemplars["name"], log::TRACE_ID);
    // As processes write it, in both formats: `telemetry::lines` is held to them.
    let pattern = Regex::new(lines["matcherRegex"].as_str().unwrap()).unwrap();
    let id = "0af7651916cd43dd8448eb211c80319c";
    for line in [
        format!("INFO ready {}={id} span_id=b7ad6b7169203331", log::TRACE_ID),
        format!(
            r#"{{"level":"INFO","{}":"{id}","span_id":"b7ad6b7169203331"}}"#,
            log::TRACE_ID
        ),
    ] {
        assert_eq!(&pattern.captures(&line).unwrap()[1], id);
    }
}
