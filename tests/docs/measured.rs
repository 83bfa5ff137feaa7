//! `docs/bench.md` and the README: their figures are those of the results beside them, and what tracing costs is within its
//! limit.

use std::{fs, process::Command};

use integration::{binary, root};
use tempfile::TempDir;

/// What stands between `<!-- name -->` and `<!-- /name -->`.
fn between<'a>(page: &'a str, name: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("<!-- {name} -->\n")).unwrap();
    rest.split_once(&format!("<!-- /{name} -->")).unwrap().0
}

/// The rows of the table under `title`.
fn section<'a>(tables: &'a str, title: &str) -> Vec<&'a str> {
    let (_, rest) = tables.split_once(&format!("### {title}\n")).unwrap();
    let own = rest.split("\n### ").next().unwrap();
    own.lines().filter(|line| line.starts_with('|')).collect()
}

#[test]
fn measured_figures_are_those_of_the_results_and_tracing_keeps_its_limit() {
    let results = root().join("docs/bench");
    let folder = TempDir::new().unwrap();
    let plot = folder.path().join("throughput.svg");
    let output = Command::new(binary("fresco"))
        .args(["bench", "report"])
        .arg(&results)
        .arg("--plot")
        .arg(&plot)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let tables = String::from_utf8(output.stdout).unwrap();
    let page = fs::read_to_string(root().join("docs/bench.md")).unwrap();
    let told = between(&page, "tables").trim();
    let told = told.strip_suffix("![Throughput over the number of sizes](bench/throughput.svg)");
    assert_eq!(told.unwrap().trim(), tables.trim());
    let drawn = fs::read_to_string(results.join("throughput.svg")).unwrap();
    assert_eq!(drawn, fs::read_to_string(plot).unwrap());
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let short: Vec<_> = between(&readme, "bench").trim().lines().collect();
    assert_eq!(short, section(&tables, "Continuous over batched"));
    // A title, a line and a row for each number of clients.
    let tracing = section(&tables, "Tracing");
    assert!(tracing.len() >= 4, "{tracing:?}");
    for row in &tracing[2..] {
        assert!(row.ends_with("≤ 10 %: met |"), "{row}");
    }
}
