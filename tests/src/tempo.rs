//! An emulation of Tempo's metrics-generator over captured spans, with what `observability/tempo/tempo.yml` says: which
//! metrics it makes of spans, under the names and labels of Tempo's documentation. No Tempo runs here. It is one of
//! [`SINCE`] or later: before, edges to or from whoever sends no spans counted as expired as well (grafana/tempo#5319), and
//! a third of the edges of a healthy fleet are such.
//!
//! Its rule for edges is that of its documentation and source: a client or producer is one half under its own id, a
//! server or consumer the other under its parent's. Both together are an edge, and are forgotten: a message that comes
//! once more is half an edge that nobody completes. Half an edge that waited for too long is the user's, if it is a
//! server without a parent; that of a named peer, if it is a client with one; and has expired otherwise. A request in a
//! trace of its client's own has expired, too, for nobody knows the other half.

mod config;
mod exposition;
mod serve;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use opentelemetry_proto::tonic::trace::v1::span::SpanKind;

pub use self::{config::Config, serve::Generator};
use crate::otlp::Captured;

/// The first version that counts as the emulation does.
pub const SINCE: (u32, u32) = (2, 9);

/// The first that does not know `local-blocks` any more, which metrics in TraceQL are counted from.
pub const BEFORE: (u32, u32) = (3, 0);

/// Labels in the order in which Tempo's documentation has them.
type Labels = Vec<(&'static str, String)>;

/// What was made of spans so far.
#[derive(Debug)]
pub struct Processor {
    config: Config,
    halves: HashMap<(Vec<u8>, Vec<u8>), (Edge, Instant)>,
    counters: BTreeMap<(&'static str, Labels), u64>,
    histograms: BTreeMap<(&'static str, Labels), Histogram>,
    expired: Vec<Edge>,
}

/// A request between two services, or half of one.
#[derive(Debug, Clone, Default)]
pub struct Edge {
    /// Who asked.
    pub client: Option<Captured>,
    /// Who answered.
    pub server: Option<Captured>,
}

#[derive(Debug, Default)]
struct Histogram {
    /// How many were at most so long, for each bound of the configuration.
    at_most: Vec<u64>,
    count: u64,
    sum: f64,
}

const CALLS: &str = "traces_spanmetrics_calls_total";
const LATENCY: &str = "traces_spanmetrics_latency";
const REQUESTS: &str = "traces_service_graph_request_total";
const FAILED: &str = "traces_service_graph_request_failed_total";
const SERVER_SECONDS: &str = "traces_service_graph_request_server_seconds";
const CLIENT_SECONDS: &str = "traces_service_graph_request_client_seconds";
const MESSAGING_SECONDS: &str = "traces_service_graph_request_messaging_system_seconds";
/// Tempo's own, of its `/metrics`. Its documentation also lists `traces_service_graph_unpaired_spans_total`, which is in
/// no source of it.
const EDGES: &str = "tempo_metrics_generator_processor_service_graphs_edges";
const EXPIRED: &str = "tempo_metrics_generator_processor_service_graphs_expired_edges";
const DROPPED: &str = "tempo_metrics_generator_processor_service_graphs_dropped_spans";

const OF_SPANS: &[&str] = &["service", "span_name", "span_kind", "status_code"];
const OF_EDGES: &[&str] = &["client", "server", "connection_type"];
const OF_TENANTS: &[&str] = &["tenant"];

/// The labels of what Tempo makes of spans, or says of itself; `None` of what it does not.
pub fn labels(sample: &str) -> Option<&'static [&'static str]> {
    let base = ["_bucket", "_sum", "_count"];
    let base = base.iter().find_map(|part| sample.strip_suffix(part));
    match base.unwrap_or(sample) {
        CALLS | LATENCY => Some(OF_SPANS),
        REQUESTS | FAILED | SERVER_SECONDS | CLIENT_SECONDS | MESSAGING_SECONDS => Some(OF_EDGES),
        EDGES | EXPIRED | DROPPED => Some(OF_TENANTS),
        _ => None,
    }
}

impl Processor {
    /// Nothing yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            halves: HashMap::new(),
            // Tempo's own are there from its start.
            counters: [EDGES, EXPIRED, DROPPED]
                .map(|name| ((name, tenant()), 0))
                .into(),
            histograms: BTreeMap::new(),
            expired: Vec::new(),
        }
    }

    /// A span has come.
    pub fn push(&mut self, captured: &Captured, now: Instant) {
        self.measure(captured);
        let span = &captured.span;
        let (id, is_client) = match captured.kind() {
            SpanKind::Client | SpanKind::Producer => (&span.span_id, true),
            SpanKind::Server | SpanKind::Consumer => (&span.parent_span_id, false),
            SpanKind::Internal | SpanKind::Unspecified => return,
        };
        let key = (span.trace_id.clone(), id.clone());
        let half = self.halves.remove(&key);
        if half.is_none() && self.halves.len() >= self.config.edges_max {
            *self.counter(DROPPED, tenant()) += 1;
            return;
        }
        let (mut edge, since) = half.unwrap_or_else(|| {
            *self.counter(EDGES, tenant()) += 1;
            (Edge::default(), now)
        });
        let side = if is_client {
            &mut edge.client
        } else {
            &mut edge.server
        };
        *side = Some(captured.clone());
        if edge.client.is_some() && edge.server.is_some() {
            self.complete(&edge);
        } else {
            self.halves.insert(key, (edge, since));
        }
    }

    /// Halves that have waited since before `wait` ago are given up.
    pub fn expire(&mut self, wait: Duration, now: Instant) {
        let old = |(_, since): &(Edge, Instant)| now.duration_since(*since) >= wait;
        let keys = self.halves.iter().filter(|(_, half)| old(half));
        let keys: Vec<_> = keys.map(|(key, _)| key.clone()).collect();
        for key in keys {
            let (edge, _) = self.halves.remove(&key).expect("it was there");
            let is_root = key.1.is_empty();
            let peer = edge.client.as_ref().and_then(|span| self.peer(span));
            match (&edge.server, peer) {
                (Some(_), _) if is_root => self.complete(&edge),
                (None, Some(_)) => self.complete(&edge),
                _ => {
                    *self.counter(EXPIRED, tenant()) += 1;
                    self.expired.push(edge);
                }
            }
        }
    }

    /// Those that found no partner.
    pub fn expired(&self) -> &[Edge] {
        &self.expired
    }

    /// Who asks whom, over what kind of connection.
    pub fn edges(&self) -> Vec<[&str; 3]> {
        let requests = self.counters.keys().filter(|(name, _)| *name == REQUESTS);
        let values = |labels: &'_ Labels| -> [usize; 3] {
            ["client", "server", "connection_type"].map(|name| {
                let at = labels.iter().position(|(label, _)| *label == name);
                at.expect("an edge has them all")
            })
        };
        requests
            .map(|(_, labels)| values(labels).map(|at| labels[at].1.as_str()))
            .collect()
    }

    fn measure(&mut self, captured: &Captured) {
        let status = captured.span.status.as_ref().map(|status| status.code());
        let labels = vec![
            ("service", service(captured)),
            ("span_name", captured.name().to_owned()),
            ("span_kind", captured.kind().as_str_name().to_owned()),
            (
                "status_code",
                status.unwrap_or_default().as_str_name().to_owned(),
            ),
        ];
        *self.counter(CALLS, labels.clone()) += 1;
        let bounds = self.config.span_buckets.clone();
        self.observe(LATENCY, labels, &bounds, captured.seconds().max(0.0));
    }

    fn complete(&mut self, edge: &Edge) {
        let (client, server) = (edge.client.as_ref(), edge.server.as_ref());
        let peer = client.and_then(|span| self.peer(span));
        let virtual_node = client.is_none() || server.is_none();
        let is_message =
            |span: &Captured| matches!(span.kind(), SpanKind::Producer | SpanKind::Consumer);
        let messages = client.or(server).is_some_and(is_message);
        let connection = match (virtual_node, messages) {
            (true, _) => "virtual_node",
            (false, true) => "messaging_system",
            (false, false) => "",
        };
        let labels = vec![
            ("client", client.map_or_else(|| "user".to_owned(), service)),
            ("server", server.map(service).or(peer).unwrap_or_default()),
            ("connection_type", connection.to_owned()),
        ];
        *self.counter(REQUESTS, labels.clone()) += 1;
        if [client, server].into_iter().flatten().any(Captured::failed) {
            *self.counter(FAILED, labels.clone()) += 1;
        }
        let bounds = self.config.graph_buckets.clone();
        // The half that is not there took no time.
        let seconds = |span: Option<&Captured>| span.map_or(0.0, |span| span.seconds().max(0.0));
        self.observe(SERVER_SECONDS, labels.clone(), &bounds, seconds(server));
        self.observe(CLIENT_SECONDS, labels.clone(), &bounds, seconds(client));
        if let (Some(client), Some(server), true) = (client, server, self.config.messaging_latency)
            && messages
        {
            let between = server.interval().0 - client.interval().1;
            // Who has it before its sender knows that it is sent is left out.
            if between > 0.0 {
                self.observe(MESSAGING_SECONDS, labels, &bounds, between);
            }
        }
    }

    /// The other side of a client that sends no spans.
    fn peer(&self, client: &Captured) -> Option<String> {
        let names = self.config.peer_attributes.iter();
        let mut values = names.filter_map(|name| client.text(name));
        values.next().map(str::to_owned)
    }

    fn counter(&mut self, name: &'static str, labels: Labels) -> &mut u64 {
        self.counters.entry((name, labels)).or_default()
    }

    fn observe(&mut self, name: &'static str, labels: Labels, bounds: &[f64], seconds: f64) {
        let histogram = self.histograms.entry((name, labels)).or_default();
        histogram.at_most.resize(bounds.len(), 0);
        for (count, bound) in histogram.at_most.iter_mut().zip(bounds) {
            *count += u64::from(seconds <= *bound);
        }
        histogram.count += 1;
        histogram.sum += seconds;
    }
}

fn tenant() -> Labels {
    vec![("tenant", "single-tenant".to_owned())]
}

fn service(span: &Captured) -> String {
    span.process("service.name").unwrap_or_default().to_owned()
}
