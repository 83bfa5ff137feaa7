//! The dashboards and alerts of `observability/`, as tests read them.

pub mod schema;

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde_json::Value;

use crate::root;

/// `observability/`.
pub fn folder() -> PathBuf {
    root().join("observability")
}

/// One dashboard file.
#[derive(Debug)]
pub struct Dashboard {
    /// Its file's name.
    pub file: String,
    /// The whole.
    pub json: Value,
}

/// A panel that is no row.
#[derive(Debug)]
pub struct Panel {
    /// Dashboard and title.
    pub name: String,
    /// The whole.
    pub json: Value,
}

/// Every dashboard, by file name.
pub fn dashboards() -> Vec<Dashboard> {
    let files = fs::read_dir(folder().join("grafana/dashboards")).expect("they are there");
    let mut paths: Vec<_> = files
        .map(|file| file.expect("a readable folder").path())
        .collect();
    paths.sort();
    paths
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a readable file");
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let json = serde_json::from_str(&text);
            Dashboard {
                json: json.unwrap_or_else(|error| panic!("{file}: {error}")),
                file: file.into_owned(),
            }
        })
        .collect()
}

impl Dashboard {
    /// Its panels, without rows.
    pub fn panels(&self) -> Vec<Panel> {
        let panels = self.json["panels"].as_array().expect("a list of panels");
        let panels = panels.iter().filter(|panel| panel["type"] != "row");
        panels
            .map(|json| Panel {
                name: format!("{}: {}", self.file, json["title"].as_str().unwrap_or("?")),
                json: json.clone(),
            })
            .collect()
    }
}

impl Panel {
    /// Whether a healthy deployment with work moves it.
    pub fn must_move(&self) -> bool {
        self.json["must"] == true
    }

    /// Its queries to Prometheus, as they are written.
    pub fn promql(&self) -> Vec<String> {
        let targets = self.json["targets"].as_array().expect("a list of queries");
        let of_prometheus = |target: &&Value| target["datasource"]["type"] == "prometheus";
        let queries = targets.iter().filter(of_prometheus);
        queries
            .map(|target| target["expr"].as_str().expect("a query").to_owned())
            .collect()
    }
}

/// The rules of Prometheus.
pub fn alerts() -> String {
    fs::read_to_string(folder().join("alerts/fresco.yml")).expect("it is there")
}

/// What rules ask for, alerts' and what is recorded for them, each with its name.
pub fn conditions() -> Vec<(String, String)> {
    let text = alerts();
    let rules = text.split("\n      - ").skip(1);
    let condition = |rule: &str| {
        let name = rule.lines().next()?.split_once(": ")?.1.to_owned();
        let (_, condition) = rule.split_once("expr:")?;
        let ends = ["\n        for:", "\n        labels:", "\n\n"];
        let end = ends.into_iter().filter_map(|end| condition.find(end)).min();
        Some((name, condition[..end.unwrap_or(condition.len())].to_owned()))
    };
    let conditions =
        rules.map(|rule| condition(rule).expect("a rule has a name and an expression"));
    conditions.collect()
}

/// What `query` selects of our metrics, once for each value that it names: of `a=~"b|c"` there are two. A value that is not
/// wanted is named all the same. Without the deployment, which is the reader's.
pub fn selectors(query: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let names = query.match_indices("fresco_").filter(|(at, _)| {
        let before = query[..*at].chars().next_back();
        !before.is_some_and(is_name)
    });
    let of_name = names.flat_map(|(at, _)| {
        let rest = &query[at..];
        let (name, rest) = rest.split_at(rest.find(|c| !is_name(c)).unwrap_or(rest.len()));
        let inside = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let mut selected = vec![Vec::new()];
        for (label, values) in matchers(inside.map_or("", |(inside, _)| inside)) {
            let with = |known: &Vec<String>, value: &str| {
                let one = format!("{label}=\"{value}\"");
                [known.clone(), vec![one]].concat()
            };
            let each = selected.iter();
            selected = each
                .flat_map(|known| values.split('|').map(move |value| with(known, value)))
                .collect();
        }
        let of = move |matchers: Vec<String>| format!("{name}{{{}}}", matchers.join(","));
        selected.into_iter().map(of)
    });
    of_name.collect()
}

/// Labels and values of what stands between braces.
fn matchers(inside: &str) -> Vec<(&str, &str)> {
    let parts = inside.split("\",").filter(|part| !part.trim().is_empty());
    let parts = parts.map(|part| {
        let (label, value) = part.split_once('"').expect("a value is quoted");
        let label = label.trim().trim_end_matches(['=', '!', '~']).trim_end();
        (label, value.trim_end_matches('"'))
    });
    parts.filter(|(label, _)| *label != "deployment").collect()
}

/// The names in `text` that look like metrics of `prefix`.
pub fn names(text: &str, prefix: &str) -> BTreeSet<String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c: char| !is_name(c));
    words
        .filter(|word| word.starts_with(prefix))
        .map(str::to_owned)
        .collect()
}

/// The labels that a PromQL query groups by, joins on or selects with.
pub fn labels(query: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for keyword in [
        "by",
        "without",
        "on",
        "ignoring",
        "group_left",
        "group_right",
    ] {
        for (at, _) in query.match_indices(keyword) {
            let rest = query[at + keyword.len()..].trim_start();
            let before = query[..at].chars().next_back();
            let list = rest.strip_prefix('(').and_then(|rest| rest.split_once(')'));
            if let Some((list, _)) = list
                && !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
            {
                found.extend(list.split(',').map(|label| label.trim().to_owned()));
            }
        }
    }
    for selector in query.split('{').skip(1) {
        let inside = selector.split_once('}').map_or("", |(inside, _)| inside);
        for matcher in inside.split("\",") {
            let label = matcher.split(['=', '!']).next().unwrap_or_default();
            found.insert(label.trim().to_owned());
        }
    }
    found.retain(|label| !label.is_empty());
    found
}
