//! Where queries stand: dashboards, links of data sources, pages.

use std::{fs, path::Path};

use serde_json::Value;

use super::grammar::Language;
use crate::{
    dashboards::{dashboards, folder},
    root,
};

/// A query that we ship.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Dashboard and panel, link or page.
    pub place: String,
    /// Of the data source that it is for.
    pub language: Language,
    /// As it is written.
    pub text: String,
}

/// What stands in the place of variables: what a person typed in, and what Grafana knows.
#[derive(Debug, Clone, Copy)]
pub struct Filled<'a> {
    /// `$trace`, and that of a span whose link is followed.
    pub trace: &'a str,
    /// `$job`.
    pub job: &'a str,
    /// `$tenant`.
    pub tenant: &'a str,
    /// `$longer`.
    pub longer: &'a str,
    /// `$namespace`, and that of a span whose link is followed.
    pub namespace: &'a str,
}

impl Default for Filled<'_> {
    /// As somebody finds a dashboard who has typed nothing in, at some trace.
    fn default() -> Self {
        Self {
            trace: "0af7651916cd43dd8448eb211c80319c",
            job: ".*",
            tenant: ".*",
            longer: "1s",
            namespace: ".+",
        }
    }
}

impl Asked {
    /// The query as the data source gets it.
    #[track_caller]
    pub fn filled(&self, with: &Filled<'_>) -> String {
        let values = [
            ("${__span.traceId}", with.trace),
            ("${__span.tags[\"service.namespace\"]}", with.namespace),
            ("$__auto", "1m"),
            ("$trace", with.trace),
            ("$job", with.job),
            ("$tenant", with.tenant),
            ("$longer", with.longer),
            ("$namespace", with.namespace),
        ];
        let text = values
            .iter()
            .fold(self.text.clone(), |text, (name, value)| {
                text.replace(name, value)
            });
        assert!(!text.contains('$'), "{}: a variable of {text}", self.place);
        text
    }
}

/// All of them.
pub fn shipped() -> Vec<Asked> {
    let mut all = of_dashboards();
    all.extend(of_data_sources());
    let mut pages = pages(&root().join("docs"));
    pages.extend(["README.md", "observability/README.md"].map(|page| root().join(page)));
    all.extend(pages.iter().flat_map(|page| of_page(page)));
    all
}

fn of_dashboards() -> Vec<Asked> {
    let panels = dashboards().into_iter().flat_map(|d| d.panels());
    panels
        .flat_map(|panel| {
            let targets = panel.json["targets"].as_array().cloned();
            let targets = targets.unwrap_or_default().into_iter();
            targets.filter_map(move |target| of_target(&panel.name, &target))
        })
        .collect()
}

/// What a target asks Tempo or Loki. A trace's id and the service graph are no query.
fn of_target(place: &str, target: &Value) -> Option<Asked> {
    let text = |field: &str| target[field].as_str().unwrap_or_default().to_owned();
    let (language, text) = match target["datasource"]["type"].as_str()? {
        "tempo" if text("queryType") == "serviceMap" => return None,
        "tempo" => (Language::TraceQl, text("query")),
        "loki" => (Language::LogQl, text("expr")),
        _ => return None,
    };
    let place = place.to_owned();
    (text != "$trace").then_some(Asked {
        place,
        language,
        text,
    })
}

/// The provisioned data sources.
pub fn data_sources() -> serde_yaml_ng::Value {
    let file = folder().join("grafana/provisioning/datasources/fresco.yml");
    let text = fs::read_to_string(file).expect("a readable file");
    serde_yaml_ng::from_str(&text).expect("YAML")
}

fn of_data_sources() -> Vec<Asked> {
    let sources = data_sources();
    let sources = sources["datasources"].as_sequence().cloned();
    let sources = sources.unwrap_or_default().into_iter();
    let links = sources.filter_map(|source| {
        let query = source["jsonData"]["tracesToLogsV2"]["query"].as_str()?;
        Some(Asked {
            place: "data sources: from a span to its log lines".to_owned(),
            language: Language::LogQl,
            // Provisioning reads `$$` as `$`.
            text: query.replace("$$", "$"),
        })
    });
    links.collect()
}

/// What a click on a span asks Prometheus, with where it stands.
pub fn links_to_metrics() -> Vec<(String, String)> {
    let sources = data_sources();
    let sources = sources["datasources"].as_sequence().into_iter().flatten();
    let queries = sources
        .flat_map(|source| source["jsonData"]["tracesToMetrics"]["queries"].as_sequence())
        .flatten();
    let named = queries.map(|query| {
        let text = |field: &str| query[field].as_str().expect("a text").to_owned();
        (format!("data sources: {}", text("name")), text("query"))
    });
    named.collect()
}

/// Every Markdown file below.
fn pages(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).expect("a readable folder");
    let paths = entries.map(|entry| entry.expect("a readable folder").path());
    let below = paths.flat_map(|path| match path.is_dir() {
        true => pages(&path),
        false => vec![path],
    });
    below
        .filter(|path| path.extension().is_some_and(|end| end == "md"))
        .collect()
}

/// What stands in blocks that are marked as a language, a query a line.
fn of_page(page: &Path) -> Vec<Asked> {
    let text = fs::read_to_string(page).expect("a readable file");
    let mut block = None;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        match line.strip_prefix("```") {
            Some("traceql") => block = Some(Language::TraceQl),
            Some("logql") => block = Some(Language::LogQl),
            Some(_) => block = None,
            None => found.extend(block.map(|language| Asked {
                place: format!("{}:{}", page.display(), number + 1),
                language,
                text: line.to_owned(),
            })),
        }
    }
    found
}
