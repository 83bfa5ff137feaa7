//! Metrics as they were pushed, and as samples that can be compared with what a scrape says.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::{
    common::v1::KeyValue,
    metrics::v1::{
        AggregationTemporality, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
        metric::Data, number_data_point::Value,
    },
};

use super::trees::text;

/// What a process pushed at once.
#[derive(Debug, Clone)]
pub struct Pushed {
    /// Attributes of the process.
    pub resource: Vec<KeyValue>,
    /// One of a name.
    pub metrics: Vec<Metric>,
}

impl Pushed {
    pub(super) fn new(of_process: ResourceMetrics) -> Self {
        let resource = of_process.resource.unwrap_or_default();
        let scopes = of_process.scope_metrics.into_iter();
        Self {
            resource: resource.attributes,
            metrics: scopes.flat_map(|scope| scope.metrics).collect(),
        }
    }

    /// A text of its process.
    pub fn process(&self, name: &str) -> Option<&str> {
        text(&self.resource, name)
    }

    /// As a scrape would have them, name and labels → value, after a look at what only OTLP says.
    pub fn samples(&self) -> BTreeMap<String, f64> {
        self.metrics.iter().flat_map(samples).collect()
    }
}

fn samples(metric: &Metric) -> Vec<(String, f64)> {
    let name = &metric.name;
    assert!(
        !metric.description.is_empty() && ["", "s", "By"].contains(&&*metric.unit),
        "{name}"
    );
    let cumulative = i32::from(AggregationTemporality::Cumulative);
    match metric.data.as_ref().expect("a metric has points") {
        Data::Gauge(gauge) => gauge.data_points.iter().map(|p| number(name, p)).collect(),
        Data::Sum(sum) => {
            assert!(
                sum.is_monotonic && sum.aggregation_temporality == cumulative,
                "{name}"
            );
            let points = sum.data_points.iter();
            points
                .map(|point| {
                    assert!(point.start_time_unix_nano > 0, "{name}");
                    assert!(point.start_time_unix_nano <= point.time_unix_nano, "{name}");
                    number(&format!("{name}_total"), point)
                })
                .collect()
        }
        Data::Histogram(histogram) => {
            assert_eq!(histogram.aggregation_temporality, cumulative, "{name}");
            let points = histogram.data_points.iter();
            points.flat_map(|point| buckets(name, point)).collect()
        }
        other => panic!("{name}: {other:?}"),
    }
}

fn number(name: &str, point: &NumberDataPoint) -> (String, f64) {
    let value = match point.value {
        Some(Value::AsDouble(value)) => value,
        // Tests count to less than 2^53.
        Some(Value::AsInt(value)) => value as f64,
        None => panic!("{name} has no value"),
    };
    (series(name, &point.attributes, None), value)
}

/// Buckets that add up to the count.
fn buckets(name: &str, point: &HistogramDataPoint) -> Vec<(String, f64)> {
    let counts = &point.bucket_counts;
    assert_eq!(counts.len(), point.explicit_bounds.len() + 1, "{name}");
    assert_eq!(counts.iter().sum::<u64>(), point.count, "{name}");
    assert!(point.start_time_unix_nano > 0, "{name}");
    let of = |part: &str, le| series(&format!("{name}_{part}"), &point.attributes, le);
    let bounds = point.explicit_bounds.iter().map(f64::to_string);
    let mut up_to = 0;
    let mut samples: Vec<_> = bounds
        .chain(["inf".to_owned()])
        .zip(counts)
        .map(|(bound, count)| {
            up_to += count;
            (of("bucket", Some(bound)), up_to as f64)
        })
        .collect();
    samples.push((of("count", None), point.count as f64));
    samples.push((of("sum", None), point.sum.expect("a histogram has a sum")));
    samples
}

fn series(name: &str, attributes: &[KeyValue], le: Option<String>) -> String {
    let labels = attributes.iter().map(|attribute| {
        let key = &attribute.key;
        let value = text(attributes, key).unwrap_or_else(|| panic!("{name}: {key} is no text"));
        (key.clone(), value.to_owned())
    });
    let labels: BTreeMap<_, _> = labels.chain(le.map(|le| ("le".to_owned(), le))).collect();
    format!("{name}{labels:?}")
}

/// The samples of what a scrape says, under the same names. For label values without quotes.
pub fn samples_of_text(text: &str) -> BTreeMap<String, f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    samples
        .map(|line| {
            let line = line.split(" # ").next().unwrap_or(line);
            let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, ""));
            let labels = labels
                .trim_end_matches('}')
                .split("\",")
                .filter(|label| !label.is_empty());
            let labels = labels.map(|label| {
                let (name, value) = label.split_once("=\"").expect("a label has a value");
                let value = value.trim_end_matches('"');
                let bound = (name == "le").then(|| value.parse::<f64>().expect("a bound"));
                let value = bound.map_or(value.to_owned(), |bound| bound.to_string());
                (name.to_owned(), value)
            });
            let labels: BTreeMap<_, _> = labels.collect();
            let value = value.parse().expect("a value is a number");
            (format!("{name}{labels:?}"), value)
        })
        .collect()
}
