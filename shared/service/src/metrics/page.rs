//! The catalogue for people: `observability/metrics.md`.

use std::fmt::Write;

use protocol::Role;

use super::catalog::{ALL, Kind, Spec};

const HEAD: &str = "# Metrics

Every role answers `/metrics` on its `--health-listen` address, in OpenMetrics text. Made from
`shared/service/src/metrics/catalog.rs` by `cargo run -p service --example metrics_page`; a test holds this page to it.
All times are in seconds. The histograms marked † carry exemplars: the trace of the last job in each bucket.

What the queues say comes from the broker at the moment of the scrape, from every gateway alike: take the maximum over
gateways, not the sum. While the broker does not answer, those are absent rather than old.

How a job ends is counted by the gateway that let it in, while it follows it. What a gateway had open that dies, or is replaced,
goes on and ends, and is in none of `fresco_job_duration_seconds`, `fresco_output_duration_seconds`, `fresco_stage_*`,
`fresco_deadline_missed_total` and `fresco_tenant_*`: the error budget does not see it.

There are no webhooks, so there are no metrics of them yet.
";

/// The page.
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    let sections = [
        ("Every process", Section::Every),
        ("Gateway", Section::Of(Role::Gateway)),
        ("Workers", Section::Workers),
        ("AR-batcher", Section::Of(Role::ArBatcher)),
        ("Denoiser", Section::Of(Role::Denoiser)),
    ];
    for (title, section) in sections {
        let rows = ALL.iter().filter(|spec| section.has(spec)).map(row);
        let rows: String = rows.collect();
        let head = "| metric | type | labels | says |\n|--------|------|--------|------|\n";
        // Writing to a string cannot fail.
        let written = write!(page, "\n## {title}\n\n{head}{rows}");
        debug_assert!(written.is_ok());
    }
    page
}

#[derive(Clone, Copy)]
enum Section {
    Every,
    Workers,
    Of(Role),
}

impl Section {
    fn has(self, spec: &Spec) -> bool {
        match self {
            Self::Every => spec.roles.len() > 2,
            Self::Workers => spec.roles.len() == 2,
            Self::Of(role) => spec.roles == [role],
        }
    }
}

fn row(spec: &Spec) -> String {
    let name = match spec.kind {
        Kind::Counter => format!("{}_total", spec.name),
        Kind::Gauge | Kind::Histogram(_) => spec.name.to_owned(),
    };
    let kind = match spec.kind {
        Kind::Histogram(bounds) => {
            let end = bounds.last().copied().unwrap_or_default();
            let traced = if spec.is_traced() { " †" } else { "" };
            format!("histogram to {end}{traced}")
        }
        kind => kind.as_str().to_owned(),
    };
    let labels: Vec<_> = spec
        .labels
        .iter()
        .map(|label| format!("`{label}`"))
        .collect();
    format!(
        "| `{name}` | {kind} | {} | {} |\n",
        labels.join(", "),
        spec.help
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_the_catalogue() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../observability/metrics.md"
        );
        let written = std::fs::read_to_string(file).unwrap();
        assert_eq!(
            written,
            page(),
            "run: cargo run -p service --example metrics_page > observability/metrics.md"
        );
    }

    #[test]
    fn every_metric_is_on_it_once() {
        let page = page();
        for spec in ALL {
            let rows = page
                .lines()
                .filter(|line| line.starts_with("| `"))
                .filter(|line| line.split('`').nth(1) == Some(&documented(spec)));
            assert_eq!(rows.count(), 1, "{}", spec.name);
        }
    }

    fn documented(spec: &Spec) -> String {
        match spec.kind {
            Kind::Counter => format!("{}_total", spec.name),
            Kind::Gauge | Kind::Histogram(_) => spec.name.to_owned(),
        }
    }
}
