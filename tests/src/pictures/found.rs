//! What the queries of a panel found.

use crate::{
    dashboards::Panel,
    otlp::{Tree, hex},
    queries::{
        Asked, Filled,
        grammar::{Language, parsed},
        logql, traceql,
    },
    scenario::Scenario,
};

/// As many as a panel has room for.
const ROWS_MAX: usize = 8;
/// More than one in two pixels nobody sees.
const POINTS_MAX: usize = 80;

/// What a panel shows.
#[derive(Debug)]
pub enum Found {
    /// There is nothing.
    Nothing,
    /// Of Prometheus.
    Lines(Vec<Line>),
    /// A table, its head first; or log lines.
    Rows(Vec<Vec<String>>),
    /// A trace.
    Tree(Tree),
    /// Client, server, kind of connection.
    Edges(Vec<[String; 3]>),
}

/// A line of a chart.
#[derive(Debug)]
pub struct Line {
    /// For people.
    pub legend: String,
    /// Seconds since the run began, and what was then.
    pub points: Vec<(f64, f64)>,
}

/// Executes them.
pub async fn find(panel: &Panel, scenario: &Scenario) -> Found {
    let targets = panel.json["targets"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let first = &targets[0];
    let text = |field: &str| first[field].as_str().unwrap_or_default();
    match text("queryType") {
        "serviceMap" => return Found::Edges(scenario.edges()),
        "traceql" if text("query") == "$trace" => return Found::Tree(scenario.retried()),
        "traceql" => return of_traces(&panel.name, text("query"), scenario),
        "range" => return of_logs(&panel.name, text("expr"), scenario),
        _ => {}
    }
    let mut lines = Vec::new();
    for target in &targets {
        let query = target["expr"].as_str().unwrap_or_default();
        let query = query.replace("$__rate_interval", "10s");
        let query = query.replace("$deployment", "e2e");
        let seconds = scenario.seconds();
        let legend = target["legendFormat"].as_str().unwrap_or_default();
        for series in scenario.prometheus.last(&query, seconds).await {
            let values = series.times.iter().zip(&series.values);
            let first = scenario.began();
            let points: Vec<_> = values.map(|(time, value)| (time - first, *value)).collect();
            let every = points.len().div_ceil(POINTS_MAX).max(1);
            let points: Vec<_> = points.into_iter().step_by(every).collect();
            if !points.is_empty() {
                lines.push(Line {
                    legend: series.legend(legend),
                    points,
                });
            }
        }
    }
    match (lines.is_empty(), panel.json["type"].as_str()) {
        (true, _) => Found::Nothing,
        (false, Some("table")) => Found::Rows(counted(&lines)),
        (false, _) => Found::Lines(lines),
    }
}

/// A table of Prometheus: the last value of each.
fn counted(lines: &[Line]) -> Vec<Vec<String>> {
    let head = vec!["of".to_owned(), "count".to_owned()];
    let rows = lines.iter().map(|line| {
        let last = line.points.last().map_or(0.0, |point| point.1);
        vec![line.legend.clone(), last.to_string()]
    });
    [head].into_iter().chain(rows).collect()
}

fn filled(place: &str, language: Language, text: &str, trace: &str) -> String {
    let asked = Asked {
        place: place.to_owned(),
        language,
        text: text.to_owned(),
    };
    asked.filled(&Filled {
        trace,
        ..Filled::default()
    })
}

fn of_traces(place: &str, query: &str, scenario: &Scenario) -> Found {
    let query = filled(place, Language::TraceQl, query, "");
    let (tree, spans) = (
        parsed(Language::TraceQl, &query),
        scenario.collector.spans(),
    );
    if query.contains("_over_time(") {
        let groups = traceql::metrics(&tree, &spans).expect("our queries are understood");
        let head = ["denoiser", "outputs", "p50", "p95"].map(str::to_owned);
        let rows = groups.into_iter().map(|(key, group)| {
            let quantiles = group.quantiles.iter().map(|q| format!("{q:.2} s"));
            let name = [key.join(" "), group.count.to_string()].into_iter();
            name.chain(quantiles).collect()
        });
        return Found::Rows([head.to_vec()].into_iter().chain(rows).collect());
    }
    let found = traceql::search(&tree, &spans).expect("our queries are understood");
    if found.is_empty() {
        return Found::Nothing;
    }
    let head = ["trace", "found", "longest"].map(str::to_owned).into_iter();
    let fields = found[0].selected.iter().map(|(field, _)| {
        let short = field
            .trim_start_matches("span.")
            .trim_start_matches("resource.");
        short.trim_start_matches("fresco.").to_owned()
    });
    let head = head.chain(fields).collect();
    let rows = found.iter().take(ROWS_MAX).map(|found| {
        let longest = found.spans.iter().map(|span| span.seconds());
        let longest = longest.fold(0.0, f64::max);
        let own = [
            found.trace[..8].to_owned(),
            found.spans.len().to_string(),
            format!("{longest:.2} s"),
        ];
        let values = found.selected.iter().map(|(_, values)| {
            let values: Vec<_> = values.iter().map(String::as_str).collect();
            values.join(", ")
        });
        own.into_iter().chain(values).collect()
    });
    Found::Rows([head].into_iter().chain(rows).collect())
}

fn of_logs(place: &str, query: &str, scenario: &Scenario) -> Found {
    let trace = hex(&scenario.retried().spans[0].span.trace_id);
    let query = filled(place, Language::LogQl, query, &trace);
    let (tree, lines) = (parsed(Language::LogQl, &query), scenario.log_lines());
    if query.contains("_over_time(") {
        let counts = logql::counts(&tree, &lines).expect("our queries are understood");
        let head = ["service", "level", "lines"].map(str::to_owned);
        let rows = counts.into_iter().map(|(mut key, count)| {
            key.push(count.to_string());
            key
        });
        return Found::Rows([head.to_vec()].into_iter().chain(rows).collect());
    }
    let found = logql::search(&tree, &lines).expect("our queries are understood");
    let rows = found.iter().take(ROWS_MAX).map(|line| {
        let json: serde_json::Value = serde_json::from_str(&line.text).unwrap_or_default();
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let service = line.labels["service_name"].clone();
        vec![
            service,
            text(&json["level"]),
            text(&json["fields"]["message"]),
        ]
    });
    let head = ["service", "level", "says"].map(str::to_owned).to_vec();
    Found::Rows([head].into_iter().chain(rows).collect())
}
