//! From answers to figures. Pure; the answers are a gateway's or the simulation's.

use std::{collections::BTreeMap, time::Duration};

use replay::{Capacity, Times, throughput_max};
use serde::{Deserialize, Serialize};

use super::load::Load;

/// What answers a load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stages {
    pub(crate) denoisers: usize,
    pub(crate) ar_slots: usize,
}

/// A request that was answered. Times are those of the table, since the start.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Answered {
    pub(crate) request: usize,
    pub(crate) sent_at: Duration,
    pub(crate) at: Duration,
    /// Pictures, or why there are none.
    pub(crate) outcome: Result<Busy, String>,
}

/// How long a request's outputs kept the stages busy, summed over the outputs.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Busy {
    /// In a slot of the AR engine.
    pub(crate) ar: Duration,
    /// With a denoiser.
    pub(crate) denoise: Duration,
}

/// All answers, and what of the time counts.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// In the order in which they came.
    pub(crate) answers: Vec<Answered>,
    /// When the ramp was over, and when the first client had nothing more to ask.
    pub(crate) window: Option<(Duration, Duration)>,
}

/// Keeps the record of a load while it runs.
#[derive(Debug)]
pub(crate) struct Recorder<'a> {
    load: &'a Load,
    sent: usize,
    opened: Option<Duration>,
    record: Record,
}

/// What of the time counts begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Edge {
    Opens,
    Closes,
}

impl<'a> Recorder<'a> {
    pub(crate) fn new(load: &'a Load) -> Self {
        Self {
            load,
            sent: 0,
            opened: None,
            record: Record::default(),
        }
    }

    /// The next request is sent, unless there is none; says its number.
    pub(crate) fn send(&mut self) -> Option<usize> {
        let request = self.sent;
        (request < self.load.requests).then(|| {
            self.sent += 1;
            request
        })
    }

    /// A request is answered.
    pub(crate) fn answer(&mut self, answer: Answered) {
        self.record.answers.push(answer);
    }

    /// To be called after whatever was sent or answered at `now`.
    pub(crate) fn edge(&mut self, now: Duration) -> Option<Edge> {
        let answered = self.record.answers.len();
        match self.opened {
            None if self.load.is_open(self.sent, answered) => {
                self.opened = Some(now);
                Some(Edge::Opens)
            }
            Some(opened) if self.record.window.is_none() && self.load.is_over(self.sent) => {
                self.record.window = Some((opened, now));
                Some(Edge::Closes)
            }
            None | Some(_) => None,
        }
    }

    pub(crate) fn finish(self) -> Record {
        self.record
    }
}

/// The figures of a run. Seconds are the table's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// Length of what counts: the ramp is over, and no client is idle.
    pub(crate) window_s: f64,
    /// Requests that were answered in it.
    pub(crate) requests: usize,
    pub(crate) images_per_s: f64,
    /// The best that any policy could reach; none where nothing takes time.
    pub(crate) bound_images_per_s: Option<f64>,
    /// From sending a request to the last byte of its answer; of an open load also of those that came in the window and
    /// were answered after it.
    pub(crate) latency_s: Spread,
    pub(crate) latency_by_size_s: BTreeMap<String, Spread>,
    /// Share of the AR slots that had a row.
    pub(crate) ar_slots_busy: f64,
    /// Share of the denoisers that painted.
    pub(crate) denoisers_busy: f64,
    /// Of all requests, those without pictures.
    pub(crate) failed: usize,
}

/// How a quantity spreads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spread {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p90: f64,
    pub(crate) p99: f64,
}

impl Spread {
    /// Nearest rank; 0 of nothing.
    pub(crate) fn of(mut values: Vec<f64>) -> Self {
        if values.is_empty() {
            return Self::default();
        }
        values.sort_by(f64::total_cmp);
        let rank = |share: f64| {
            let rank = (share * values.len() as f64).ceil() as usize;
            values[rank.saturating_sub(1)]
        };
        Self {
            mean: values.iter().sum::<f64>() / values.len() as f64,
            p50: rank(0.5),
            p90: rank(0.9),
            p99: rank(0.99),
        }
    }
}

/// The best that any policy could reach with these stages under this load, in images a second.
pub(crate) fn bound(times: &Times, load: &Load, stages: Stages) -> f64 {
    let capacity = Capacity {
        ar_slots: stages.ar_slots,
        denoisers: stages.denoisers,
        picture: times.picture(load.steps),
        tokens_mean: load.tokens_mean(),
        outputs_max: load.outputs_max(),
    };
    throughput_max(times, &capacity)
}

/// The figures of `record`; none when nothing counts.
pub(crate) fn summarise(
    record: &Record,
    load: &Load,
    stages: Stages,
    times: &Times,
) -> Option<Summary> {
    let (from, to) = record.window?;
    let window_s = to.checked_sub(from)?.as_secs_f64();
    let mut latencies: Vec<f64> = Vec::new();
    let mut by_size: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let (mut busy, mut requests) = (Busy::default(), 0_usize);
    for answer in &record.answers {
        // After its opening, which an answer is.
        let in_window = from < answer.at && answer.at <= to;
        let Ok(its) = &answer.outcome else { continue };
        if in_window {
            requests += 1;
            busy.ar += its.ar;
            busy.denoise += its.denoise;
        }
        if load.latency_counts(answer.request, in_window) {
            let latency = (answer.at - answer.sent_at).as_secs_f64();
            latencies.push(latency);
            let size = load.size(answer.request).to_string();
            by_size.entry(size).or_default().push(latency);
        }
    }
    if requests == 0 || window_s == 0.0 {
        return None;
    }
    let bound = bound(times, load, stages);
    let share = |busy: Duration, of: usize| busy.as_secs_f64() / (window_s * of as f64);
    Some(Summary {
        window_s,
        requests,
        images_per_s: requests as f64 * f64::from(load.n) / window_s,
        bound_images_per_s: bound.is_finite().then_some(bound),
        latency_s: Spread::of(latencies),
        latency_by_size_s: by_size
            .into_iter()
            .map(|(size, latencies)| (size, Spread::of(latencies)))
            .collect(),
        ar_slots_busy: share(busy.ar, stages.ar_slots),
        denoisers_busy: share(busy.denoise, stages.denoisers),
        failed: record
            .answers
            .iter()
            .filter(|answer| answer.outcome.is_err())
            .count(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::load::tests::load;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let spread = Spread::of((1..=200).map(f64::from).collect());
        assert_eq!((spread.p50, spread.p90, spread.p99), (100.0, 180.0, 198.0));
        assert!((spread.mean - 100.5).abs() < 1e-9);
        assert_eq!(Spread::of(vec![3.0]).p99, 3.0);
        assert_eq!(Spread::of(Vec::new()), Spread::default());
    }

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn answered(request: usize, sent: u64, at: u64) -> Answered {
        Answered {
            request,
            sent_at: s(sent),
            at: s(at),
            outcome: Ok(Busy {
                ar: s(3),
                denoise: s(4),
            }),
        }
    }

    /// Nothing takes time.
    fn no_times() -> Times {
        let text = r#"{"ar": {"rows_ms": [[1, 0]], "tokens": 1}, "denoise": {"step_ms": 0, "decode_ms": 0}}"#;
        let table = serde_json::from_str(text).expect("a table");
        Times::new(table, 1.0).expect("in range")
    }

    #[test]
    fn of_an_open_load_what_is_unanswered_at_the_end_of_the_window_counts_as_latency() {
        let load = load("--rate 1 --requests 5").expect("a load");
        // The first is the ramp; of the four that count, two are not answered when the last one has come.
        let ends = [2, 3, 4, 50, 60];
        let answers = (0..5).map(|i| answered(i, i as u64, ends[i])).collect();
        let record = Record {
            answers,
            window: Some((s(0), s(4))),
        };
        let stages = Stages {
            denoisers: 1,
            ar_slots: 1,
        };
        let summary = summarise(&record, &load, stages, &no_times()).expect("something counts");
        assert_eq!(summary.requests, 3);
        assert_eq!((summary.latency_s.p50, summary.latency_s.p99), (2.0, 56.0));
        assert_eq!(summary.latency_by_size_s["1024x1024"].p99, 56.0);
    }

    #[test]
    fn only_what_is_answered_in_the_window_counts() {
        let load = load("--concurrency 1 --requests 4 --sizes 64x64,64x32 -n 2").expect("a load");
        let mut failed = answered(3, 16, 18);
        failed.outcome = Err("no".to_owned());
        let answers = vec![
            answered(0, 0, 10),
            answered(1, 10, 12),
            answered(2, 12, 16),
            failed,
            answered(4, 18, 21),
        ];
        let record = Record {
            answers,
            window: Some((s(10), s(20))),
        };
        let times = no_times();
        let stages = Stages {
            denoisers: 2,
            ar_slots: 3,
        };
        let summary = summarise(&record, &load, stages, &times).expect("something counts");
        assert_eq!((summary.requests, summary.failed), (2, 1));
        assert!((summary.images_per_s - 0.4).abs() < 1e-9);
        assert!((summary.latency_s.mean - 3.0).abs() < 1e-9);
        assert_eq!(summary.latency_by_size_s["64x64"].p99, 4.0);
        assert_eq!(summary.latency_by_size_s["64x32"].p99, 2.0);
        assert!((summary.ar_slots_busy - 0.2).abs() < 1e-9);
        assert!((summary.denoisers_busy - 0.4).abs() < 1e-9);
        assert_eq!(summary.bound_images_per_s, None, "nothing takes time");
    }
}
