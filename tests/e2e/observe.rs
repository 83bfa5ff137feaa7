//! The dashboards at work: a fleet that does everything a fleet can do, a real Prometheus beside it, and every query of
//! every panel executed. And the time of a job adds up.

use std::collections::BTreeSet;

use integration::{
    dashboards::{Panel, conditions, dashboards, selectors},
    fleet::until,
    otlp::hex,
    prometheus::Prometheus,
    scenario::Scenario,
};

/// Queries that have nothing in the scenario, each with its panel and a part of it: replay has no prior tokens to look for in
/// a cache, no device that writes them, and no tensors. No other may be empty.
const EMPTY: [(&str, &str); 4] = [
    (
        "workers.json: AR device busy",
        "fresco_ar_device_busy_seconds_total",
    ),
    (
        "pipeline.json: Prior cache",
        "fresco_prior_cache_hits_total",
    ),
    ("workers.json: Tensors", "fresco_libtorch_memory_bytes"),
    ("workers.json: Tensors", "fresco_libtorch_memory_peak_bytes"),
];

/// Queries that may stand still in a panel that has to move: there are as many slots as engines give, and what fails or ends
/// in the scenario does so at a denoiser, or at an AR engine by chance.
const STILL: [(&str, &str); 3] = [
    ("pipeline.json: Slots", "fresco_ar_slots"),
    ("pipeline.json: Rows", "fresco_ar_rows_failed_total"),
    ("pipeline.json: Rows", "fresco_ar_rows_withdrawn_total"),
];

/// What is wrong with a panel: each query has to show something, and has to move where a healthy deployment with work moves
/// the panel.
async fn faults_of(prometheus: &Prometheus, panel: &Panel, seconds: u64) -> Vec<String> {
    let mut faults = Vec::new();
    for query in &panel.promql() {
        let is_listed = |list: &[(&str, &str)]| {
            let is_it = |(of, part): &(&str, &str)| panel.name == *of && query.contains(part);
            list.iter().any(is_it)
        };
        let asked = query.replace("$__rate_interval", "10s");
        let asked = asked.replace("$deployment", "e2e");
        let series = prometheus.last(&asked, seconds).await;
        let shows = series.iter().any(|series| !series.values.is_empty());
        match (shows, is_listed(&EMPTY)) {
            (false, false) => faults.push(format!("empty, or not a number: {query}")),
            (true, true) => faults.push(format!("not empty: {query}")),
            _ => {}
        }
        let moves = series.iter().any(|series| series.moves());
        if panel.must_move() && !moves && !is_listed(&STILL) {
            faults.push(format!("constant: {query}"));
        }
    }
    faults
}

/// The one value of a query that has one.
async fn value(prometheus: &Prometheus, query: &str) -> f64 {
    let series = prometheus.now(query).await;
    assert_eq!(series.len(), 1, "{query}: {series:?}");
    series[0].values[0]
}

#[tokio::test]
async fn every_panel_shows_a_fleet_at_work_and_its_time_adds_up() {
    let scenario = Scenario::run().await;
    let prometheus = &scenario.prometheus;
    let (mut executed, mut faults) = (0, Vec::new());
    for panel in dashboards().iter().flat_map(|dashboard| dashboard.panels()) {
        executed += panel.promql().len();
        let of_panel = faults_of(prometheus, &panel, scenario.seconds()).await;
        faults.extend(
            of_panel
                .iter()
                .map(|fault| format!("{}: {fault}", panel.name)),
        );
    }
    println!("{executed} queries over {} s", scenario.seconds());
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(executed > 60, "{executed}");
    adds_up(prometheus).await;
    selected_values_are_there(&scenario).await;
    points_lead_to_traces(&scenario).await;
}

/// Waits and runs of all stages are the whole, within 2 %. They are made of stamps, each the end of one and the beginning of
/// the next: it shows that clocks agree, of machines and of a process with itself, and no time that a stage took
/// unmeasured. That is looked for in spans: `e2e::traces`.
async fn adds_up(prometheus: &Prometheus) {
    let whole = r#"sum(fresco_output_duration_seconds_sum{outcome="done"})"#;
    let parts = "sum(fresco_stage_wait_seconds_sum) + sum(fresco_stage_run_seconds_sum)";
    let whole = value(prometheus, whole).await;
    let parts = value(prometheus, parts).await;
    let rest = value(prometheus, "sum(fresco_unattributed_seconds_sum)").await;
    assert!((parts - whole).abs() <= 0.02 * whole, "{parts} of {whole}");
    assert!(rest <= 0.02 * whole, "{rest} of {whole}");
}

/// A rule that asks for a value which no label has is silent for ever, and so is a panel.
async fn selected_values_are_there(scenario: &Scenario) {
    let panels = dashboards();
    let panels = panels.iter().flat_map(|dashboard| dashboard.panels());
    let panels = panels.flat_map(|panel| {
        let queries = panel.promql().into_iter();
        queries.map(move |query| (panel.name.clone(), query))
    });
    let mut asked = BTreeSet::new();
    for (place, query) in panels.chain(conditions()) {
        let selected = selectors(&query).into_iter();
        let of_values = selected.filter(|selector| !selector.ends_with("{}"));
        asked.extend(of_values.map(|selector| (selector, place.clone())));
    }
    assert!(asked.len() > 30, "{asked:?}");
    let mut faults = Vec::new();
    for (selector, place) in asked {
        let query = format!("last_over_time({selector}[{}s])", scenario.seconds());
        if scenario.prometheus.now(&query).await.is_empty() {
            faults.push(format!("{place}: nothing has {selector}"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What a click on a point of a latency asks for is a trace that the collector has got.
async fn points_lead_to_traces(scenario: &Scenario) {
    let points = scenario
        .prometheus
        .exemplars("fresco_job_duration_seconds_bucket", scenario.seconds());
    let traces = points.await;
    assert!(!traces.is_empty());
    until("the collector has the traces of all points", || async {
        let spans = scenario.collector.spans();
        let there: BTreeSet<_> = spans.iter().map(|span| hex(&span.span.trace_id)).collect();
        traces.is_subset(&there).then_some(())
    })
    .await;
}
