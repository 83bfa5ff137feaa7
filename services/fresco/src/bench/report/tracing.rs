//! What it costs that every job is traced: runs of one load with spans and without, in turns.

use super::{arrivals, markdown, verdict};
use crate::bench::{Outcome, load::Load};

/// Of the requests a second, where no stage takes time.
const COST_MAX: f64 = 0.10;

/// Loads that ran both ways, with their runs.
struct Pair<'a> {
    load: &'a Load,
    untraced: Vec<&'a Outcome>,
    traced: Vec<&'a Outcome>,
}

/// Whether `outcome` is there for what tracing costs, and for nothing else.
pub(super) fn is_of_it(outcome: &Outcome, all: &[&Outcome]) -> bool {
    let has_twin = |other: &&&Outcome| other.traced && is_same(other, outcome);
    all.iter().any(|other| has_twin(&other))
}

fn is_same(a: &Outcome, b: &Outcome) -> bool {
    let of = |outcome: &Outcome| (outcome.load.clone(), outcome.denoisers, outcome.ar_slots);
    of(a) == of(b)
}

pub(super) fn costs(outcomes: &[&Outcome]) -> Vec<String> {
    let head = "| load | runs of each | requests/s untraced | traced | costs | p50 ms untraced | traced | wanted |";
    let row = |pair: &Pair<'_>| {
        let per_s = |outcome: &Outcome| outcome.measured.images_per_s / f64::from(outcome.load.n);
        let p50 = |outcome: &Outcome| 1_000.0 * outcome.measured.latency_s.p50;
        let (untraced, traced) = (median(&pair.untraced, per_s), median(&pair.traced, per_s));
        let cost = 1.0 - traced / untraced;
        format!(
            "| {} | {} | {untraced:.0} | {traced:.0} | {:.1} % | {:.1} | {:.1} | {} |",
            arrivals(pair.load),
            pair.untraced.len().min(pair.traced.len()),
            100.0 * cost,
            median(&pair.untraced, p50),
            median(&pair.traced, p50),
            verdict(&format!("≤ {:.0} %", 100.0 * COST_MAX), cost <= COST_MAX),
        )
    };
    markdown(head, pairs(outcomes).iter().map(row))
}

fn pairs<'a>(outcomes: &[&'a Outcome]) -> Vec<Pair<'a>> {
    let mut pairs: Vec<Pair<'a>> = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| outcome.traced) {
        if pairs.iter().any(|pair| is_same(pair.traced[0], outcome)) {
            continue;
        }
        let same = outcomes.iter().filter(|other| is_same(other, outcome));
        let (traced, untraced): (Vec<_>, Vec<_>) = same.partition(|other| other.traced);
        if !untraced.is_empty() {
            pairs.push(Pair {
                load: &outcome.load,
                untraced,
                traced,
            });
        }
    }
    pairs
}

/// The upper one of two in the middle. Of at least one run.
fn median(outcomes: &[&Outcome], figure: impl Fn(&Outcome) -> f64) -> f64 {
    let mut figures: Vec<f64> = outcomes.iter().map(|outcome| figure(outcome)).collect();
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::{super::tests::outcome, *};

    fn run(flags: &str, traced: bool, per_s: f64) -> Outcome {
        Outcome {
            traced,
            ..outcome(flags, "continuous", per_s)
        }
    }

    #[test]
    fn medians_of_runs_of_one_load_are_compared() {
        let load = "--concurrency 16 --requests 500";
        let runs = [
            run(load, false, 500.0),
            run(load, true, 300.0),
            run(load, false, 400.0),
            run(load, true, 460.0),
            run(load, false, 900.0),
            run(load, true, 470.0),
            // Another load has no twin.
            run("--concurrency 16 --requests 501", false, 1.0),
            run("--concurrency 16 --requests 502", true, 1.0),
        ];
        let runs: Vec<&Outcome> = runs.iter().collect();
        let lines = costs(&runs);
        assert_eq!(lines.len(), 3, "{lines:?}");
        let expected = "| 16 clients | 3 | 500 | 460 | 8.0 % | 7.0 | 7.0 | ≤ 10 %: met |";
        assert_eq!(lines[2], expected);
        let alone: Vec<bool> = runs.iter().map(|run| is_of_it(run, &runs)).collect();
        let wanted = [true, true, true, true, true, true, false, true];
        assert_eq!(alone, wanted);

        let slower = [run(load, false, 500.0), run(load, true, 440.0)];
        let slower: Vec<&Outcome> = slower.iter().collect();
        assert!(costs(&slower)[2].ends_with("| ≤ 10 %: **missed** |"));
    }
}
