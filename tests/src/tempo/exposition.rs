//! The metrics as text for Prometheus. Tempo writes them to it; what it gets is the same.

use std::fmt::Write;

use super::{Histogram, LATENCY, Labels, Processor};

impl Processor {
    /// In Prometheus' text format.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut last = "";
        for ((name, labels), value) in &self.counters {
            if last != *name {
                line(&mut text, format_args!("# TYPE {name} counter"));
                last = name;
            }
            line(&mut text, format_args!("{} {value}", series(name, labels)));
        }
        for ((name, labels), histogram) in &self.histograms {
            if last != *name {
                line(&mut text, format_args!("# TYPE {name} histogram"));
                last = name;
            }
            let bounds = match *name {
                LATENCY => &self.config.span_buckets,
                _ => &self.config.graph_buckets,
            };
            write_histogram(&mut text, name, labels, bounds, histogram);
        }
        text
    }
}

fn write_histogram(
    text: &mut String,
    name: &str,
    labels: &Labels,
    bounds: &[f64],
    histogram: &Histogram,
) {
    let bounds = bounds.iter().map(ToString::to_string);
    let counts = histogram.at_most.iter().copied();
    for (bound, count) in bounds
        .zip(counts)
        .chain([("+Inf".to_owned(), histogram.count)])
    {
        let labels = [&labels[..], &[("le", bound)]].concat();
        let series = series(&format!("{name}_bucket"), &labels);
        line(text, format_args!("{series} {count}"));
    }
    for (part, value) in [
        ("sum", histogram.sum),
        // Exact up to 2^53.
        ("count", histogram.count as f64),
    ] {
        let series = series(&format!("{name}_{part}"), labels);
        line(text, format_args!("{series} {value}"));
    }
}

fn series(name: &str, labels: &[(&'static str, String)]) -> String {
    let labels = labels.iter().map(|(label, value)| {
        let value = value.replace('\\', r"\\").replace('"', r#"\""#);
        format!("{label}=\"{value}\"")
    });
    format!("{name}{{{}}}", labels.collect::<Vec<_>>().join(","))
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a string takes everything");
}
