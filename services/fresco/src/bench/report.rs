//! Results as tables in Markdown. Pure but for reading the files.

use std::{collections::BTreeSet, fs, path::Path};

use service::exit::Failure;

use super::{
    Outcome,
    load::{Arrivals, Load},
    plot,
    summary::Summary,
};
use crate::{args::BenchReportArgs, terminal};

pub(super) fn run(args: &BenchReportArgs) -> Result<(), Failure> {
    let outcomes = read(&args.results)?;
    let (timed, untimed): (Vec<_>, Vec<_>) = outcomes
        .iter()
        .partition(|outcome| outcome.measured.bound_images_per_s.is_some());
    for lines in [
        throughput(&timed),
        ratios(&timed),
        plans(&timed),
        dispatch(&untimed),
        cpu(&outcomes),
    ] {
        lines.iter().for_each(terminal::say);
        terminal::say("");
    }
    match &args.plot {
        Some(file) => plot::draw(file, &timed),
        None => Ok(()),
    }
}

/// In the order of their names.
fn read(folder: &Path) -> Result<Vec<Outcome>, Failure> {
    let cannot = |what: &Path, error: &dyn std::fmt::Display| {
        Failure::Unusable(format!("cannot read {}: {error}", what.display()))
    };
    let entries = fs::read_dir(folder).map_err(|error| cannot(folder, &error))?;
    let files = entries.flatten().map(|entry| entry.path());
    let mut files: Vec<_> = files
        .filter(|file| file.extension().is_some_and(|end| end == "json"))
        .collect();
    files.sort();
    let read = |file: &std::path::PathBuf| {
        let bytes = fs::read(file).map_err(|error| cannot(file, &error))?;
        serde_json::from_slice(&bytes).map_err(|error| cannot(file, &error))
    };
    files.iter().map(read).collect()
}

/// Rows of Markdown under a head.
fn markdown(head: &str, rows: impl Iterator<Item = String>) -> Vec<String> {
    let columns = head.matches('|').count() - 1;
    [head.to_owned(), "|---".repeat(columns) + "|"]
        .into_iter()
        .chain(rows)
        .collect()
}

pub(super) fn arrivals(load: &Load) -> String {
    match load.arrivals {
        Arrivals::Closed { concurrency } => format!("{concurrency} clients"),
        Arrivals::Open { requests_per_s } => format!("{requests_per_s}/s"),
    }
}

fn throughput(outcomes: &[&Outcome]) -> Vec<String> {
    let head = "| load | sizes | AR slots | denoisers | admission | images/s | bound | of bound | p50 s | p90 s | p99 s | AR busy | denoisers busy |";
    let row = |outcome: &&Outcome| {
        let Summary {
            images_per_s,
            bound_images_per_s,
            latency_s,
            ar_slots_busy,
            denoisers_busy,
            ..
        } = &outcome.measured;
        let bound = bound_images_per_s.unwrap_or(f64::INFINITY);
        format!(
            "| {} | {} | {} | {} | {} | {images_per_s:.3} | {bound:.3} | {:.1} % | {:.1} | {:.1} | {:.1} | {:.0} % | {:.0} % |",
            arrivals(&outcome.load),
            outcome.load.sizes.len(),
            outcome.ar_slots,
            outcome.denoisers,
            outcome.admission,
            100.0 * images_per_s / bound,
            latency_s.p50,
            latency_s.p90,
            latency_s.p99,
            100.0 * ar_slots_busy,
            100.0 * denoisers_busy,
        )
    };
    markdown(head, outcomes.iter().map(row))
}

/// Continuous over batched, where both were measured under the same load.
fn ratios(outcomes: &[&Outcome]) -> Vec<String> {
    let pairs = outcomes.iter().flat_map(|continuous| {
        let is_pair = |other: &&&Outcome| {
            let same = |of: &Outcome| {
                (
                    arrivals(&of.load),
                    of.load.sizes.clone(),
                    of.ar_slots,
                    of.denoisers,
                )
            };
            continuous.admission == "continuous"
                && other.admission == "batched"
                && same(continuous) == same(other)
        };
        let batched = outcomes.iter().find(is_pair)?;
        let (ours, theirs) = (
            continuous.measured.images_per_s,
            batched.measured.images_per_s,
        );
        Some(format!(
            "| {} | {} | {ours:.3} | {theirs:.3} | {:.2} |",
            arrivals(&continuous.load),
            continuous.load.sizes.len(),
            ours / theirs
        ))
    });
    markdown("| load | sizes | continuous | batched | ratio |", pairs)
}

/// What was foretold beside what was measured.
fn plans(outcomes: &[&Outcome]) -> Vec<String> {
    let head =
        "| load | sizes | admission | images/s | plan | off by | mean latency s | plan | off by |";
    let row = |outcome: &&Outcome| {
        let (measured, planned) = (&outcome.measured, outcome.planned.as_ref()?);
        let off = |measured: f64, planned: f64| 100.0 * (planned / measured - 1.0);
        let (rate, rate_planned) = (measured.images_per_s, planned.images_per_s);
        let (latency, latency_planned) = (measured.latency_s.mean, planned.latency_s.mean);
        Some(format!(
            "| {} | {} | {} | {rate:.3} | {rate_planned:.3} | {:+.1} % | {latency:.1} | {latency_planned:.1} | {:+.1} % |",
            arrivals(&outcome.load),
            outcome.load.sizes.len(),
            outcome.admission,
            off(rate, rate_planned),
            off(latency, latency_planned),
        ))
    };
    markdown(head, outcomes.iter().filter_map(row))
}

/// Where the stages take no time, all of it is ours.
fn dispatch(outcomes: &[&Outcome]) -> Vec<String> {
    let head = "| load | denoisers | requests/s | p50 ms | p90 ms | p99 ms |";
    let row = |outcome: &&Outcome| {
        let Summary {
            images_per_s,
            latency_s,
            ..
        } = &outcome.measured;
        format!(
            "| {} | {} | {:.0} | {:.1} | {:.1} | {:.1} |",
            arrivals(&outcome.load),
            outcome.denoisers,
            images_per_s / f64::from(outcome.load.n),
            1_000.0 * latency_s.p50,
            1_000.0 * latency_s.p90,
            1_000.0 * latency_s.p99,
        )
    };
    markdown(head, outcomes.iter().map(row))
}

fn cpu(outcomes: &[Outcome]) -> Vec<String> {
    let roles = outcomes
        .iter()
        .flat_map(|outcome| outcome.cpu_ms_per_request.keys());
    let roles: Vec<&String> = roles.collect::<BTreeSet<_>>().into_iter().collect();
    let names = roles.iter().map(|role| format!(" {role} |"));
    let head = "| run, CPU ms a request |".to_owned() + &names.collect::<String>();
    let row = |outcome: &Outcome| {
        let cell = |role: &&String| {
            let ms = outcome.cpu_ms_per_request.get(*role);
            ms.map_or_else(|| " |".to_owned(), |ms| format!(" {ms:.2} |"))
        };
        format!("| {} |", outcome.name) + &roles.iter().map(cell).collect::<String>()
    };
    markdown(&head, outcomes.iter().map(row))
}
