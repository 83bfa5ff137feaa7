//! What of Tempo's configuration decides over its metrics.

use std::fs;

use serde_yaml_ng::Value;

use crate::dashboards::folder;

/// Of `metrics_generator` in `observability/tempo/tempo.yml`.
#[derive(Debug, Clone)]
pub struct Config {
    /// Of `service_graphs`.
    pub graph_buckets: Vec<f64>,
    /// Of `span_metrics`.
    pub span_buckets: Vec<f64>,
    /// Whether the time between sending and receiving is measured.
    pub messaging_latency: bool,
    /// Halves that wait at once; what else comes is left out.
    pub edges_max: usize,
    /// What of a client's attributes names a peer that sends no spans, the first first.
    pub peer_attributes: Vec<String>,
}

impl Config {
    /// Ours.
    pub fn shipped() -> Self {
        let text = fs::read_to_string(folder().join("tempo/tempo.yml"));
        let whole: Value = serde_yaml_ng::from_str(&text.expect("readable")).expect("YAML");
        let processors = &whole["overrides"]["defaults"]["metrics_generator"]["processors"];
        let processors = processors.as_sequence().expect("a list");
        for processor in ["service-graphs", "span-metrics"] {
            assert!(processors.contains(&Value::from(processor)), "{processor}");
        }
        let of = &whole["metrics_generator"]["processor"];
        let graphs = &of["service_graphs"];
        let numbers = |list: &Value| -> Vec<f64> {
            serde_yaml_ng::from_value(list.clone()).expect("a list of numbers")
        };
        let names = graphs["peer_attributes"].clone();
        Self {
            graph_buckets: numbers(&graphs["histogram_buckets"]),
            span_buckets: numbers(&of["span_metrics"]["histogram_buckets"]),
            messaging_latency: graphs["enable_messaging_system_latency_histogram"] == true,
            edges_max: serde_yaml_ng::from_value(graphs["max_items"].clone()).expect("a number"),
            peer_attributes: serde_yaml_ng::from_value(names).expect("a list of names"),
        }
    }
}
