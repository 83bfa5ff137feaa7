//! What a fleet's processes said.

use std::fs;

use super::Fleet;
use crate::queries::logql::Line;

impl Fleet {
    /// Every line, as a shipper would send it to Loki: a stream for each role.
    pub fn log_lines(&self) -> Vec<Line> {
        let mut lines = Vec::new();
        for file in fs::read_dir(self.folder()).expect("the folder is ours") {
            let path = file.expect("the folder is ours").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let Some(role) = name.strip_suffix(".log") else {
                continue;
            };
            let role = role.trim_end_matches(|c: char| c == '-' || c.is_ascii_digit());
            let labels = [
                ("service_name", format!("fresco-{role}")),
                ("service_namespace", self.broker.prefix().to_string()),
            ];
            let labels = labels.map(|(label, value)| (label.to_owned(), value));
            let text = fs::read_to_string(&path).expect("a log is text");
            lines.extend(text.lines().map(|text| Line {
                labels: labels.clone().into(),
                text: text.to_owned(),
            }));
        }
        lines
    }
}
