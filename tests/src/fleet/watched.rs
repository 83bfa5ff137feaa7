//! A fleet of which everything can be seen: its processes send their spans to a collector, and say in JSON what each job
//! did.

use replay::Table;

use super::{Fleet, Size};
use crate::{api::Api, otlp::Collector, process::Process, tenants::tenants_file};

fn flags(collector: &Collector) -> [String; 6] {
    let url = collector.url();
    // What a single job did is said at debug.
    let logs = ["--log-format", "json", "--log", "debug"];
    let [format, json, log, debug] = logs.map(str::to_owned);
    ["--otlp-endpoint".to_owned(), url, format, json, log, debug]
}

impl Fleet {
    /// Three denoisers, on replay engines with an empty script.
    pub async fn watched(table: Table, collector: &Collector) -> Self {
        let size = Size {
            shell_flags: flags(collector).to_vec(),
            ..Size::replay(3, table)
        };
        Self::start_replay(size, &[]).await
    }

    /// One more gateway of it, for clients with a key.
    pub async fn watched_gateway_of_tenants(&self, collector: &Collector) -> (Process, Api) {
        let (file, watched) = (tenants_file(self.folder()), flags(collector));
        let file = file.to_str().expect("paths of tests are text");
        let watched = watched.iter().map(String::as_str);
        let flags: Vec<_> = watched.chain(["--tenants", file]).collect();
        self.start_gateway("gateway-2", &flags).await
    }
}
