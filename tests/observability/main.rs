//! What is emitted, what is documented, what dashboards and alerts ask for: one set. The field's own tools read every
//! query and every rule.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

mod schema;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
};

use integration::{
    dashboards::{Dashboard, alerts, conditions, dashboards, folder, labels, names, selectors},
    pictures,
    queries::{
        Filled,
        grammar::{Language, parse},
        links_to_metrics, shipped,
    },
    root, tempo,
};
use service::metrics::catalog::{ALL, Spec};
use tempfile::TempDir;

/// What Prometheus adds to every series of ours, or makes of a histogram.
const ADDED: [&str; 4] = ["instance", "job", "deployment", "le"];

/// Runs a program of the PATH that has to succeed.
fn run(program: &str, arguments: &[&str], folder: &std::path::Path) -> String {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; run `make test`"));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{program} {arguments:?}:\n{said}");
    said
}

/// Every query to Prometheus, with where it stands.
fn queries() -> Vec<(String, String)> {
    let panels = dashboards().into_iter().flat_map(|d| d.panels());
    let of_panels = panels.flat_map(|panel| {
        let queries = panel.promql();
        queries.into_iter().map(move |q| (panel.name.clone(), q))
    });
    of_panels.chain(links_to_metrics()).collect()
}

/// Name of a sample → its metric.
fn samples() -> BTreeMap<String, Spec> {
    let of = |spec: &Spec| {
        let spec = *spec;
        spec.samples().into_iter().map(move |name| (name, spec))
    };
    ALL.iter().flat_map(of).collect()
}

#[test]
fn dashboards_and_alerts_ask_for_what_there_is_and_for_all_of_it() {
    let samples = samples();
    let mut asked: Vec<(String, String)> = queries();
    asked.push(("alerts".to_owned(), alerts()));
    let mut used = BTreeSet::new();
    for (place, text) in &asked {
        for name in names(text, "fresco_") {
            let spec = samples.get(&name);
            let spec = spec.unwrap_or_else(|| panic!("{place} asks for {name}, which is nowhere"));
            used.insert(spec.name);
        }
    }
    let all: BTreeSet<_> = ALL.iter().map(|spec| spec.name).collect();
    let unused: Vec<_> = all.difference(&used).collect();
    assert!(unused.is_empty(), "nobody looks at {unused:?}");
}

#[test]
fn a_query_groups_and_selects_by_labels_that_its_metrics_have() {
    let samples = samples();
    let panels = queries();
    // A click on a span knows the namespace of its process, which is not what scrapes call the deployment.
    let of_panels = |place: &str| !place.starts_with("data sources");
    for (place, query) in panels.iter().filter(|(place, _)| of_panels(place)) {
        let of_deployment = query.matches(r#"deployment=~"$deployment"}"#).count();
        let asked = query.matches("fresco_").count();
        assert!(
            of_deployment >= asked,
            "{place}: {query} sees other deployments"
        );
    }
    let conditions = conditions();
    assert!(conditions.len() > 10, "{conditions:?}");
    for (place, query) in panels.into_iter().chain(conditions) {
        let of_query = names(&query, "fresco_");
        let mut known: BTreeSet<&str> = ADDED.into_iter().collect();
        known.extend(of_query.iter().flat_map(|name| samples[name].labels));
        let of_spans = ["traces_", "tempo_"].map(|prefix| names(&query, prefix));
        for name in of_spans.iter().flatten() {
            let labels = tempo::labels(name);
            known.extend(labels.unwrap_or_else(|| panic!("{place}: Tempo makes no {name}")));
        }
        let unknown: Vec<_> = labels(&query)
            .into_iter()
            .filter(|label| !known.contains(label.as_str()) && label != "__name__")
            .collect();
        assert!(unknown.is_empty(), "{place}: {unknown:?} in {query}");
    }
}

/// Those that end at once for what they ask, or that nobody waited for, make a fleet look fast.
#[test]
fn how_long_jobs_take_is_asked_of_those_that_ended_alike() {
    let (queries, names) = (queries(), ["job", "output"]);
    let names = names.map(|what| format!("fresco_{what}_duration_seconds"));
    let of_durations = |query: &&String| names.iter().any(|name| query.contains(name));
    let asked: Vec<_> = queries.iter().map(|(_, query)| query).collect();
    let asked: Vec<_> = asked.into_iter().filter(of_durations).collect();
    assert!(asked.len() > 8, "{asked:?}");
    for query in asked {
        assert!(labels(query).contains("outcome"), "{query} mixes outcomes");
    }
}

/// What a gateway forgets when the broker does not answer it once, and an alert must not.
#[test]
fn a_look_that_fails_begins_no_alert_anew() {
    let forgotten = ["queue_", "stream_m", "stream_b", "dead_letter_", "workers"];
    let mut asked = 0;
    for (alert, condition) in conditions() {
        for (at, _) in condition.match_indices("fresco_") {
            let name = &condition[at + "fresco_".len()..];
            if forgotten.iter().any(|start| name.starts_with(start)) {
                let kept = condition[..at].ends_with("last_over_time(");
                assert!(kept, "{alert} asks for fresco_{name:.30} of this moment");
                asked += 1;
            }
        }
    }
    assert!(asked >= 10, "{asked}");
}

#[test]
fn a_variable_offers_the_values_of_a_label_that_its_metric_has() {
    let samples = samples();
    let mut offered = BTreeSet::new();
    for Dashboard { file, json } in dashboards() {
        let variables = json["templating"]["list"].as_array().unwrap();
        let queried = variables.iter().filter(|it| it["type"] == "query");
        for query in queried.map(|it| it["query"]["query"].as_str().unwrap()) {
            let inside = query.strip_prefix("label_values(");
            let inside = inside.and_then(|rest| rest.strip_suffix(')')).unwrap();
            let (metric, label) = inside.rsplit_once(", ").unwrap();
            let spec = samples[metric.split('{').next().unwrap()];
            for label in labels(metric).into_iter().chain([label.to_owned()]) {
                let known = spec.labels.iter().chain(&ADDED).any(|it| *it == label);
                assert!(known, "{file}: {label} of {}", spec.name);
                offered.insert(label);
            }
        }
    }
    assert!(offered.contains("tenant"), "{offered:?}");
}

#[test]
fn prometheus_itself_reads_every_query() {
    let rules = queries().into_iter().enumerate().map(|(i, (_, query))| {
        let query = query.replace("$__rate_interval", "1m");
        let query = serde_json::to_string(&query).unwrap();
        format!("      - {{ record: 'panel:{i}', expr: {query} }}\n")
    });
    let rules: String = rules.collect();
    let text = format!("groups:\n  - name: panels\n    rules:\n{rules}");
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("panels.yml"), text).unwrap();
    run("promtool", &["check", "rules", "panels.yml"], folder.path());
}

#[test]
fn grafanas_own_grammars_read_every_query_to_tempo_and_loki() {
    let shipped = shipped();
    let filled: Vec<_> = shipped
        .iter()
        .map(|asked| (asked.language, asked.filled(&Filled::default())))
        .collect();
    let texts: Vec<_> = filled.iter().map(|(l, text)| (*l, text.as_str())).collect();
    for (asked, tree) in shipped.iter().zip(parse(&texts)) {
        let (place, faults) = (&asked.place, tree.faults());
        assert!(faults.is_empty(), "{place}: {faults:?} in {}", asked.text);
    }
    let count = |language| {
        shipped
            .iter()
            .filter(move |asked| asked.language == language)
    };
    let (traces, logs) = (count(Language::TraceQl), count(Language::LogQl));
    assert!(traces.count() >= 12 && logs.count() >= 3);
}

/// Several deployments may share a Tempo and a Prometheus: a panel is of the one that is chosen, or says that it is of all.
#[test]
fn a_panel_of_spans_is_of_one_deployment_or_says_that_it_is_of_all() {
    let of_all = "Of all deployments.";
    let (mut of_one, mut told) = (0, 0);
    for panel in dashboards().into_iter().flat_map(|d| d.panels()) {
        let description = panel.json["description"].as_str().unwrap();
        for target in panel.json["targets"].as_array().unwrap() {
            let text = |field: &str| target[field].as_str().unwrap_or_default();
            let (expr, query) = (text("expr"), text("query"));
            let is_of_tempo = target["datasource"]["type"] == "tempo";
            let selects = query.contains(r#"resource.service.namespace =~ "$namespace""#);
            if is_of_tempo && selects {
                of_one += 1;
            } else if ["traces_", "tempo_"].iter().any(|it| expr.contains(it))
                || is_of_tempo && query != "$trace"
            {
                assert!(description.contains(of_all), "{}", panel.name);
                told += 1;
                continue;
            }
            assert!(!description.contains(of_all), "{}", panel.name);
        }
    }
    assert!(of_one >= 6 && told >= 6, "{of_one}, {told}");
}

#[test]
fn a_broken_query_is_told() {
    use Language::{LogQl, TraceQl};
    let broken = [
        (TraceQl, r#"{ name = "job" "#),
        (TraceQl, r#"{ name = }"#),
        (TraceQl, r#"{ name = "job" } >> "#),
        // Go takes such numbers; the grammar of the editor does not.
        (TraceQl, "{ } | quantile_over_time(duration, .5) by (name)"),
        (TraceQl, "{ name = \"$job\" } | sel(name)"),
        (LogQl, r#"{service_name="a" |= "b""#),
        (LogQl, r#"{service_name="a"} | json | level ="#),
        (LogQl, r#"sum by (level) (count_over_time({a="b"}))"#),
    ];
    for ((_, text), tree) in broken.iter().zip(parse(&broken)) {
        assert!(!tree.faults().is_empty(), "{text}");
    }
}

#[test]
fn dashboards_are_whole_and_of_no_installation() {
    let mut uids = BTreeSet::new();
    for dashboard in dashboards() {
        let (file, json) = (&dashboard.file, &dashboard.json);
        let uid = json["uid"].as_str().unwrap();
        assert!(uids.insert(uid.to_owned()), "{file}: {uid} twice");
        for field in ["title", "description"] {
            assert!(
                json[field].as_str().is_some_and(|text| text.len() > 5),
                "{file}: {field}"
            );
        }
        assert!(
            json.get("id").is_none(),
            "{file}: an id is of one installation"
        );
        let all = json["panels"].as_array().unwrap();
        let ids: BTreeSet<_> = all
            .iter()
            .map(|panel| panel["id"].as_u64().unwrap())
            .collect();
        assert_eq!(ids.len(), all.len(), "{file}: panel ids");
        for panel in dashboard.panels() {
            let name = &panel.name;
            let described = panel.json["description"]
                .as_str()
                .is_some_and(|d| d.len() > 10);
            assert!(described, "{name}: no description");
            let unit = panel.json["fieldConfig"]["defaults"]["unit"].as_str();
            assert!(unit.is_some_and(|unit| !unit.is_empty()), "{name}: no unit");
            let targets = panel.json["targets"].as_array().unwrap();
            assert!(!targets.is_empty(), "{name}: no query");
            let refs: BTreeSet<_> = targets
                .iter()
                .map(|t| t["refId"].as_str().unwrap())
                .collect();
            assert_eq!(refs.len(), targets.len(), "{name}: refIds");
        }
        let text = json.to_string();
        for uid in text
            .split("\"uid\":\"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next())
        {
            let chosen = ["${prometheus}", "${tempo}", "${loki}"].contains(&uid);
            assert!(
                chosen || uids.contains(uid),
                "{file}: a data source of one installation: {uid}"
            );
        }
        assert!(!text.contains("<<<<<<<"), "{file}: a merge marker");
    }
    assert!(uids.len() >= 4);
}

#[test]
fn dashboards_are_as_their_program_writes_them() {
    let program = folder().join("grafana/dashboards.py");
    run(
        "python3",
        &["-B", program.to_str().unwrap(), "--check"],
        &root(),
    );
}

#[test]
fn the_page_shows_every_dashboard_and_a_trace() {
    let page = fs::read_to_string(folder().join("README.md")).unwrap();
    let dashboards = dashboards().into_iter();
    let files = dashboards.map(|dashboard| dashboard.file.replace(".json", ".svg"));
    let files: BTreeSet<_> = files.chain(["trace.svg".to_owned()]).collect();
    for file in &files {
        let picture = fs::metadata(folder().join("pictures").join(file));
        let bytes = picture.unwrap_or_else(|error| panic!("{file}: {error}; `make screenshots`"));
        let bytes = bytes.len();
        assert!(bytes <= pictures::BYTES_MAX, "{file}: {bytes} bytes");
        assert!(page.contains(&format!("(pictures/{file})")), "{file}");
    }
    let there = fs::read_dir(folder().join("pictures")).unwrap().count();
    assert_eq!(there, files.len(), "pictures of nothing");
}

#[test]
fn alerts_do_what_their_cases_say() {
    let alerts = folder().join("alerts");
    run("promtool", &["check", "rules", "fresco.yml"], &alerts);
    run("promtool", &["test", "rules", "fresco.test.yml"], &alerts);
}

#[test]
fn every_alert_has_a_case_in_which_it_fires_one_in_which_it_does_not_and_a_runbook() {
    let rules = alerts();
    let cases = fs::read_to_string(folder().join("alerts/fresco.test.yml")).unwrap();
    let after = |text: &str, key: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.split_once(key));
        let words = lines.map(|(_, rest)| rest.trim_matches([' ', '}', '"']).to_owned());
        words.collect()
    };
    let mut runbooks: BTreeSet<String> = BTreeSet::new();
    for alert in after(&rules, "- alert:") {
        // A case that fires names the alert on a line of its own and then what it says; one that does not is one line.
        let fires = cases.contains(&format!(
            "        alertname: {alert}\n        exp_alerts:\n"
        ));
        let quiet = cases.contains(&format!("alertname: {alert} }}"));
        assert!(fires, "{alert} fires in no case");
        assert!(quiet, "{alert} is quiet in no case");
        let of_alert = rules.split(&format!("- alert: {alert}\n")).nth(1).unwrap();
        let runbook = after(of_alert, "runbook_url:").swap_remove(0);
        let text = fs::read_to_string(root().join(&runbook));
        let text = text.unwrap_or_else(|error| panic!("{alert}: {runbook}: {error}"));
        assert!(
            text.starts_with(&format!("# {alert}\n")),
            "{runbook} is of {alert}"
        );
        runbooks.insert(runbook);
    }
    let files = fs::read_dir(root().join("docs/runbooks")).unwrap();
    let files = files.map(|file| {
        let name = file.unwrap().file_name();
        format!("docs/runbooks/{}", name.to_string_lossy())
    });
    assert_eq!(
        files.collect::<BTreeSet<_>>(),
        runbooks,
        "runbooks of no alert"
    );
}

#[test]
fn labels_are_found_where_promql_has_them() {
    let query = r#"sum by (a, b) (rate(x{c="1", d=~"2|3", e!="4"}[5m])) / on (f) group_left(g) y"#;
    let found: Vec<_> = labels(query).into_iter().collect();
    assert_eq!(found, ["a", "b", "c", "d", "e", "f", "g"]);
}

#[test]
fn every_value_that_is_selected_by_is_found_where_promql_has_it() {
    let query = r#"sum by (a) (rate(fresco_x_total{a=~"1|2", b!="3", deployment=~"$deployment"}[5m]))
        / on () fresco_y unless up{job="fresco"}"#;
    let found: Vec<_> = selectors(query).into_iter().collect();
    let of = |a| format!(r#"fresco_x_total{{a="{a}",b="3"}}"#);
    assert_eq!(found, [of(1), of(2), "fresco_y{}".to_owned()]);
}
