//! A real Prometheus of a test's own, which scrapes a fleet.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use messaging::Bus;
use protocol::Role;
use reqwest::Client;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{fleet::until, free_port, process::Process};

/// A scrape every other second: what takes minutes in a deployment takes seconds in a test.
const CONFIG: &str = "
global: { scrape_interval: 2s, scrape_timeout: 2s }
scrape_configs:
  - job_name: fresco
    file_sd_configs: [{ files: [targets.json], refresh_interval: 1s }]
  - job_name: tempo
    file_sd_configs: [{ files: [tempo.json], refresh_interval: 1s }]
";

/// It runs until it is dropped.
pub struct Prometheus {
    url: String,
    client: Client,
    _process: Process,
    // Last: the folder goes after the process that writes into it.
    folder: TempDir,
}

/// One series of an answer: its labels, and its values in the order of time.
#[derive(Debug)]
pub struct Series {
    /// As Prometheus writes them.
    pub labels: BTreeMap<String, String>,
    /// Those that are numbers.
    pub values: Vec<f64>,
    /// When each was so, in seconds of the Unix epoch.
    pub times: Vec<f64>,
}

impl Prometheus {
    /// Starts it and waits until it answers. It scrapes nobody yet.
    pub async fn start() -> Self {
        Self::start_with(CONFIG).await
    }

    /// The same with a configuration of the test's own.
    pub async fn start_with(config: &str) -> Self {
        let folder = TempDir::with_prefix("fresco-prometheus-").expect("a temporary folder");
        fs::write(folder.path().join("prometheus.yml"), config).expect("the folder is ours");
        for targets in ["targets.json", "tempo.json"] {
            fs::write(folder.path().join(targets), "[]").expect("the folder is ours");
        }
        let address = format!("127.0.0.1:{}", free_port());
        let text = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        let flags = [
            format!("--config.file={}", text("prometheus.yml")),
            format!("--storage.tsdb.path={}", text("data")),
            format!("--web.listen-address={address}"),
            "--enable-feature=exemplar-storage".to_owned(),
        ];
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let program = PathBuf::from("prometheus");
        let process = Process::start(&program, "prometheus", &flags, folder.path());
        let prometheus = Self {
            url: format!("http://{address}"),
            client: Client::new(),
            _process: process,
            folder,
        };
        until("Prometheus is ready", || async {
            let ready = prometheus.client.get(format!("{}/-/ready", prometheus.url));
            let ready = ready.send().await.ok()?;
            ready.status().is_success().then_some(())
        })
        .await;
        prometheus
    }

    /// From now on it scrapes who is there, too: those that are gone stay, as they would in a deployment.
    pub async fn watch(&self, bus: &Bus, roles: &[Role]) {
        let workers = bus.workers().await.expect("the broker runs");
        let of_roles = workers.iter().filter(|worker| roles.contains(&worker.role));
        let addresses = of_roles.filter_map(|worker| worker.health_address);
        let file = self.folder.path().join("targets.json");
        let known = fs::read_to_string(&file).expect("it is there");
        let known: Value = serde_json::from_str(&known).expect("we wrote it");
        let mut targets: Vec<String> =
            serde_json::from_value(known[0]["targets"].clone()).unwrap_or_default();
        targets.extend(addresses.map(|address| address.to_string()));
        targets.sort();
        targets.dedup();
        self.aim(&file, &targets);
    }

    /// From now on it gets what Tempo would write to it.
    pub fn watch_tempo(&self, address: SocketAddr) {
        self.aim(
            &self.folder.path().join("tempo.json"),
            &[address.to_string()],
        );
    }

    fn aim(&self, file: &Path, targets: &[String]) {
        // Whole or not at all: it may be read at any moment.
        let fresh = self.folder.path().join("targets.part");
        let labels = json!({ "deployment": "e2e" });
        let text = json!([{ "targets": targets, "labels": labels }]).to_string();
        fs::write(&fresh, text).expect("the folder is ours");
        fs::rename(fresh, file).expect("the folder is ours");
    }

    /// What `query` is now: one value a series.
    pub async fn now(&self, query: &str) -> Vec<Series> {
        self.ask("query", &[("query", query)]).await
    }

    /// What `query` was, second by second, over the last `seconds`.
    pub async fn last(&self, query: &str, seconds: u64) -> Vec<Series> {
        let (start, end) = range(seconds);
        let parameters = [
            ("query", query),
            ("start", &start),
            ("end", &end),
            ("step", "1"),
        ];
        self.ask("query_range", &parameters).await
    }

    /// The traces that the points of a histogram of the last `seconds` lead to.
    pub async fn exemplars(&self, query: &str, seconds: u64) -> BTreeSet<String> {
        let (start, end) = range(seconds);
        let parameters = [("query", query), ("start", &start), ("end", &end)];
        let series = self.data("query_exemplars", &parameters).await;
        let series = series.as_array().expect("a list").iter();
        let points = series.flat_map(|series| series["exemplars"].as_array().expect("a list"));
        let traces = points.filter_map(|point| point["labels"]["trace_id"].as_str());
        traces.map(str::to_owned).collect()
    }

    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Vec<Series> {
        let data = self.data(path, parameters).await;
        let series = data["result"].as_array().expect("a list");
        series.iter().map(Series::of).collect()
    }

    async fn data(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let pairs = parameters.iter();
        let pairs = pairs.map(|(name, value)| format!("{name}={}", percent_encoded(value)));
        let query = pairs.collect::<Vec<_>>().join("&");
        let url = format!("{}/api/v1/{path}?{query}", self.url);
        let answer = self.client.get(url).send().await;
        let answer = answer.expect("Prometheus answers").text().await;
        let answer: Value = serde_json::from_str(&answer.expect("whole")).expect("JSON");
        assert_eq!(answer["status"], "success", "{parameters:?}: {answer}");
        answer["data"].clone()
    }
}

/// The last `seconds` in seconds of the Unix epoch.
fn range(seconds: u64) -> (String, String) {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let now = now.expect("after 1970").as_secs();
    ((now - seconds).to_string(), now.to_string())
}

/// As a part of a URL.
fn percent_encoded(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    });
    encoded.collect()
}

impl Series {
    fn of(series: &Value) -> Self {
        let values = match series["values"].as_array() {
            Some(values) => values.clone(),
            None => vec![series["value"].clone()],
        };
        let number = |pair: &Value| {
            let value = pair[1].as_str()?.parse::<f64>().ok();
            Some((pair[0].as_f64()?, value.filter(|value| value.is_finite())?))
        };
        let labels = serde_json::from_value(series["metric"].clone());
        let (times, values) = values.iter().filter_map(number).unzip();
        Self {
            labels: labels.expect("labels are texts"),
            values,
            times,
        }
    }

    /// What a panel calls it: `{{label}}` is the label's value.
    pub fn legend(&self, format: &str) -> String {
        let fill = |text: String, (label, value): (&String, &String)| {
            text.replace(&format!("{{{{{label}}}}}"), value)
        };
        self.labels.iter().fold(format.to_owned(), fill)
    }

    /// Whether it was different at different times.
    pub fn moves(&self) -> bool {
        self.values.windows(2).any(|pair| pair[0] != pair[1])
    }
}
