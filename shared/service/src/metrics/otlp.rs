//! The metrics of a process as OTLP has them: read from the text that a scrape gets, so that both say the same.
//!
//! Names are those of Prometheus without `_total`, which a collector that speaks both puts back. Everything counts from
//! the start of the process. Exemplars stay with the scrape.

use std::collections::{BTreeMap, HashMap};

pub(crate) use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, Gauge, Histogram, HistogramDataPoint, NumberDataPoint, Sum,
        metric::Data, number_data_point::Value,
    },
};

use super::catalog::{Kind, Spec};

/// From when to when something was counted, in nanoseconds of the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The metrics that have a sample in `text`.
pub(crate) fn metrics(specs: &[Spec], text: &str, span: Span) -> Vec<Metric> {
    let own = specs.iter().map(Spec::samples).enumerate();
    let places: HashMap<_, _> = own
        .flat_map(|(place, names)| names.into_iter().map(move |name| (name, place)))
        .collect();
    let mut samples = vec![Vec::new(); specs.len()];
    for sample in text.lines().filter_map(sample) {
        if let Some(place) = places.get(&sample.name) {
            samples[*place].push(sample);
        }
    }
    let of = |(spec, samples): (&Spec, &Vec<Sample>)| {
        let data = data(spec, samples, span)?;
        let unit = match spec.unit() {
            Some("seconds") => "s",
            Some("bytes") => "By",
            // Not "1", which says that it is a ratio: on its way to Prometheus a gauge would be given that for a name.
            _ => "",
        };
        Some(Metric {
            name: spec.name.to_owned(),
            description: spec.help.to_owned(),
            unit: unit.to_owned(),
            data: Some(data),
            ..Metric::default()
        })
    };
    specs.iter().zip(&samples).filter_map(of).collect()
}

/// `None` where there is no sample.
fn data(spec: &Spec, samples: &[Sample], span: Span) -> Option<Data> {
    if samples.is_empty() {
        return None;
    }
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    Some(match spec.kind {
        Kind::Counter => Data::Sum(Sum {
            data_points: samples.iter().map(|s| number(s, span)).collect(),
            aggregation_temporality,
            is_monotonic: true,
        }),
        Kind::Gauge => {
            // What it is now, since no time in particular.
            let now = Span { start: 0, ..span };
            Data::Gauge(Gauge {
                data_points: samples.iter().map(|s| number(s, now)).collect(),
            })
        }
        Kind::Histogram(_) => Data::Histogram(Histogram {
            data_points: histograms(samples, span),
            aggregation_temporality,
        }),
    })
}

fn number(sample: &Sample, span: Span) -> NumberDataPoint {
    let whole = sample.value.parse().map(Value::AsInt);
    NumberDataPoint {
        attributes: attributes(&sample.labels),
        start_time_unix_nano: span.start,
        time_unix_nano: span.end,
        value: Some(whole.unwrap_or_else(|_| Value::AsDouble(sample.number()))),
        ..NumberDataPoint::default()
    }
}

/// A point for each set of labels. Prometheus counts what is up to a bound, OTLP what is between two.
fn histograms(samples: &[Sample], span: Span) -> Vec<HistogramDataPoint> {
    let mut points: BTreeMap<Labels, HistogramDataPoint> = BTreeMap::new();
    for sample in samples {
        let mut labels = sample.labels.clone();
        let at = labels.iter().position(|(name, _)| name == "le");
        let bound = at.map(|at| labels.remove(at).1);
        let point = points.entry(labels).or_default();
        match bound {
            Some(bound) => {
                let up_to: u64 = sample.value.parse().unwrap_or_default();
                point.bucket_counts.push(up_to.saturating_sub(point.count));
                point.count = up_to;
                if let Some(bound) = bound.parse().ok().filter(|bound: &f64| bound.is_finite()) {
                    point.explicit_bounds.push(bound);
                }
            }
            None if sample.name.ends_with("_sum") => point.sum = Some(sample.number()),
            None => {}
        }
    }
    let whole = |(labels, point): (Labels, HistogramDataPoint)| HistogramDataPoint {
        attributes: attributes(&labels),
        start_time_unix_nano: span.start,
        time_unix_nano: span.end,
        ..point
    };
    points.into_iter().map(whole).collect()
}

type Labels = Vec<(String, String)>;

/// A line of the text.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    name: String,
    labels: Labels,
    value: String,
}

impl Sample {
    fn number(&self) -> f64 {
        self.value.parse().unwrap_or(f64::NAN)
    }
}

/// `None` for what is none: a comment.
fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (Labels::new(), rest),
    };
    // An exemplar may follow.
    let value = rest.split_whitespace().next()?;
    Some(Sample {
        name: name.to_owned(),
        labels,
        value: value.to_owned(),
    })
}

/// Labels up to the brace that ends them, and what is behind it.
fn labels(mut rest: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    loop {
        rest = rest.trim_start_matches(',');
        if let Some(behind) = rest.strip_prefix('}') {
            return Some((labels, behind));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (value, behind) = unquoted(quoted)?;
        labels.push((name.to_owned(), value));
        rest = behind;
    }
}

/// A value up to the quote that ends it, and what is behind it.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    loop {
        match characters.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            (_, other) => value.push(other),
        }
    }
}

fn attributes(labels: &[(String, String)]) -> Vec<KeyValue> {
    labels
        .iter()
        .map(|(name, value)| attribute(name, value.clone()))
        .collect()
}

/// A text under its name.
pub(crate) fn attribute(name: &str, value: String) -> KeyValue {
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue {
            value: Some(any_value::Value::StringValue(value)),
        }),
        ..KeyValue::default()
    }
}

#[cfg(test)]
mod tests {
    use protocol::Role;

    use super::*;
    use crate::metrics::{Metrics, Trace, catalog::*};

    const SPAN: Span = Span { start: 1, end: 2 };

    #[test]
    fn what_a_scrape_says_is_what_a_collector_gets() {
        let registry = Metrics::new(Role::Gateway);
        registry.counter(JOBS_ACCEPTED).inc_by(3);
        registry.seconds(DEVICE_BUSY).inc_by(1.5);
        let odd = ["a \"b\" \\ {c},\n", "h", "cpu", "r"].map(str::to_owned);
        registry.told::<4>(WORKER_INFO).tell(odd.clone());
        // Without a series it is none.
        registry.gauges::<2>(QUEUE_DEPTH);
        let run = registry.traced_by::<1>(STAGE_RUN).of(["ar"]);
        for seconds in [0.3, 0.3, 7.0, 1_000.0] {
            run.observe(seconds, &Trace::current());
        }
        let metrics = registry.otlp(SPAN).unwrap();
        let names: Vec<_> = metrics
            .iter()
            .map(|metric| (&*metric.name, &*metric.unit))
            .collect();
        let wanted = [
            (JOBS_ACCEPTED.name, ""),
            (DEVICE_BUSY.name, "s"),
            (WORKER_INFO.name, ""),
            (STAGE_RUN.name, "s"),
        ];
        assert_eq!(names, wanted);
        let metrics = <[Metric; 4]>::try_from(metrics).unwrap();
        let [accepted, busy, info, run] = metrics.map(|metric| metric.data.unwrap());
        let number = |data: Data| match data {
            Data::Sum(Sum {
                mut data_points,
                is_monotonic: true,
                aggregation_temporality: 2,
            }) => {
                assert_eq!(data_points[0].start_time_unix_nano, 1);
                data_points.remove(0).value
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(number(accepted), Some(Value::AsInt(3)));
        assert_eq!(number(busy), Some(Value::AsDouble(1.5)));
        let Data::Gauge(info) = info else {
            panic!("{info:?}")
        };
        let names = ["worker", "host", "device", "model_revision"];
        let told: Vec<_> = names
            .into_iter()
            .zip(odd)
            .map(|(n, v)| attribute(n, v))
            .collect();
        assert_eq!(info.data_points[0].attributes, told);
        let Data::Histogram(run) = run else {
            panic!("{run:?}")
        };
        let [point] = &run.data_points[..] else {
            panic!("{run:?}")
        };
        assert_eq!((point.count, point.sum), (4, Some(1_007.6)));
        assert_eq!(point.attributes, [attribute("stage", "ar".to_owned())]);
        assert_eq!(point.bucket_counts.len(), point.explicit_bounds.len() + 1);
        let filled: Vec<_> = point
            .bucket_counts
            .iter()
            .filter(|count| **count > 0)
            .collect();
        assert_eq!(filled, [&2, &1, &1]);
        assert_eq!(
            point.bucket_counts.last(),
            Some(&1),
            "beyond the last bound"
        );
    }
}
