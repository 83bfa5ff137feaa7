//! Results as tables in Markdown. Pure but for reading the files.

mod tracing;

use std::{collections::BTreeSet, fs, path::Path};

use service::exit::Failure;

use super::{
    Outcome,
    load::{Arrivals, Load},
    origin::Origin,
    plot,
    summary::Summary,
};
use crate::{args::BenchReportArgs, terminal};

pub(super) fn run(args: &BenchReportArgs) -> Result<(), Failure> {
    let outcomes = read(&args.results)?;
    let (timed, untimed): (Vec<_>, Vec<_>) = outcomes
        .iter()
        .partition(|outcome| outcome.measured.bound_images_per_s.is_some());
    let (of_tracing, of_dispatch): (Vec<_>, Vec<_>) = untimed
        .iter()
        .partition(|outcome| tracing::is_of_it(outcome, &untimed));
    origins(&outcomes).iter().for_each(terminal::say);
    for (title, lines) in [
        ("Throughput", throughput(&timed)),
        ("Continuous over batched", ratios(&timed)),
        ("Plan", plans(&timed)),
        ("Dispatch", dispatch(&of_dispatch)),
        ("Tracing", tracing::costs(&of_tracing)),
        ("Processor time", cpu(&outcomes)),
    ] {
        terminal::say(format_args!("\n### {title}\n"));
        lines.iter().for_each(terminal::say);
    }
    match &args.plot {
        Some(file) => plot::draw(file, &timed),
        None => Ok(()),
    }
}

/// What the project wants of its own measurements, `make bench`. Continuous over batched admission with 28 clients and
/// so many sizes.
const RATIOS_MIN: [(usize, f64); 4] = [(1, 1.25), (2, 1.5), (4, 1.9), (8, 2.7)];
const RATIOS_CLIENTS: usize = 28;
/// Of the bound, with so many clients and AR slots or more: enough that no stage has to be idle.
const BOUND_SHARE_MIN: f64 = 0.97;
const BOUND_CLIENTS_MIN: usize = 112;
const BOUND_AR_SLOTS_MIN: usize = 56;
/// How far a plan may be off, in throughput and in mean latency.
const PLAN_OFF_MAX: f64 = 0.05;
/// Of a lone client where no stage takes time, in seconds.
const DISPATCH_P50_MAX: f64 = 0.008;
const DISPATCH_P99_MAX: f64 = 0.040;
/// Where no stage takes time.
const DISPATCH_PER_S_MIN: f64 = 600.0;

/// A limit beside what was measured.
fn verdict(limit: &str, is_met: bool) -> String {
    format!("{limit}: {}", if is_met { "met" } else { "**missed**" })
}

/// When and where the runs were made, each once.
fn origins(outcomes: &[Outcome]) -> Vec<String> {
    let origins: BTreeSet<_> = outcomes.iter().map(|outcome| &outcome.origin).collect();
    let line = |origin: &Origin| {
        let Origin {
            commit,
            date,
            machine,
        } = origin;
        let commit = commit.as_ref().map(|commit| format!(", commit {commit}"));
        let commit = commit.unwrap_or_default();
        format!(
            "Measured on {date} on {} cores of {}{commit}.",
            machine.cores, machine.cpu
        )
    };
    origins.into_iter().map(line).collect()
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
    let head = "| load | sizes | AR slots | denoisers | admission | images/s | bound | of bound | p50 s | p90 s | p99 s | AR busy | denoisers busy | failed | wanted |";
    let row = |outcome: &&Outcome| {
        let Summary {
            images_per_s,
            bound_images_per_s,
            latency_s,
            ar_slots_busy,
            denoisers_busy,
            failed,
            ..
        } = &outcome.measured;
        let bound = bound_images_per_s.unwrap_or(f64::INFINITY);
        let share = outcome.share_of_bound();
        let wanted = share.filter(|_| {
            outcome.load.at_once() >= BOUND_CLIENTS_MIN && outcome.ar_slots >= BOUND_AR_SLOTS_MIN
        });
        let wanted = wanted.map(|share| {
            let limit = format!("≥ {:.0} % of the bound", 100.0 * BOUND_SHARE_MIN);
            verdict(&limit, share >= BOUND_SHARE_MIN)
        });
        format!(
            "| {} | {} | {} | {} | {} | {images_per_s:.3} | {bound:.3} | {} | {:.1} | {:.1} | {:.1} | {:.0} % | {:.0} % | {failed} | {} |",
            arrivals(&outcome.load),
            outcome.load.sizes.len(),
            outcome.ar_slots,
            outcome.denoisers,
            outcome.admission,
            share.map_or_else(String::new, |share| format!("{:.1} %", 100.0 * share)),
            latency_s.p50,
            latency_s.p90,
            latency_s.p99,
            100.0 * ar_slots_busy,
            100.0 * denoisers_busy,
            wanted.unwrap_or_default(),
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
        let ratio = ours / theirs;
        let sizes = continuous.load.sizes.len();
        let wanted = RATIOS_MIN.iter().find(|(of, _)| *of == sizes);
        let wanted = wanted.filter(|_| continuous.load.at_once() == RATIOS_CLIENTS);
        let wanted = wanted.map(|(_, min)| verdict(&format!("≥ {min}"), ratio >= *min));
        let share = continuous.share_of_bound();
        Some(format!(
            "| {} | {sizes} | {theirs:.3} images/s | {ours:.3} images/s | {} | {ratio:.2} | {} |",
            arrivals(&continuous.load),
            share.map_or_else(String::new, |share| format!("{:.1} %", 100.0 * share)),
            wanted.unwrap_or_default(),
        ))
    });
    let head = "| load | sizes in the mix | one batch of one size at a time | continuous admission | of its bound | ratio | wanted |";
    markdown(head, pairs)
}

/// What was foretold beside what was measured.
fn plans(outcomes: &[&Outcome]) -> Vec<String> {
    let head = "| load | sizes | admission | images/s | plan | off by | mean latency s | plan | off by | wanted |";
    let row = |outcome: &&Outcome| {
        let (measured, planned) = (&outcome.measured, outcome.planned.as_ref()?);
        let off = |measured: f64, planned: f64| planned / measured - 1.0;
        let (rate, rate_planned) = (measured.images_per_s, planned.images_per_s);
        let (latency, latency_planned) = (measured.latency_s.mean, planned.latency_s.mean);
        let (rate_off, latency_off) = (off(rate, rate_planned), off(latency, latency_planned));
        let is_met = rate_off.abs() <= PLAN_OFF_MAX && latency_off.abs() <= PLAN_OFF_MAX;
        Some(format!(
            "| {} | {} | {} | {rate:.3} | {rate_planned:.3} | {:+.1} % | {latency:.1} | {latency_planned:.1} | {:+.1} % | {} |",
            arrivals(&outcome.load),
            outcome.load.sizes.len(),
            outcome.admission,
            100.0 * rate_off,
            100.0 * latency_off,
            verdict(&format!("within {:.0} %", 100.0 * PLAN_OFF_MAX), is_met),
        ))
    };
    markdown(head, outcomes.iter().filter_map(row))
}

/// Where the stages take no time, all of it is ours.
fn dispatch(outcomes: &[&Outcome]) -> Vec<String> {
    let head = "| load | denoisers | requests/s | p50 ms | p90 ms | p99 ms | failed | wanted |";
    let row = |outcome: &&Outcome| {
        let Summary {
            images_per_s,
            latency_s,
            failed,
            ..
        } = &outcome.measured;
        let per_s = images_per_s / f64::from(outcome.load.n);
        let limit = format!("≥ {DISPATCH_PER_S_MIN:.0}/s");
        let mut wanted = vec![verdict(&limit, per_s >= DISPATCH_PER_S_MIN)];
        if outcome.load.at_once() == 1 {
            for (name, found, max) in [
                ("p50", latency_s.p50, DISPATCH_P50_MAX),
                ("p99", latency_s.p99, DISPATCH_P99_MAX),
            ] {
                let limit = format!("{name} ≤ {:.0} ms", 1_000.0 * max);
                wanted.push(verdict(&limit, found <= max));
            }
        }
        format!(
            "| {} | {} | {per_s:.0} | {:.1} | {:.1} | {:.1} | {failed} | {} |",
            arrivals(&outcome.load),
            outcome.denoisers,
            1_000.0 * latency_s.p50,
            1_000.0 * latency_s.p90,
            1_000.0 * latency_s.p99,
            wanted.join(", "),
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

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::bench::{
        load::tests::load,
        origin::Machine,
        summary::{Spread, Summary},
    };

    pub(in crate::bench::report) fn outcome(
        flags: &str,
        admission: &str,
        images_per_s: f64,
    ) -> Outcome {
        let measured = Summary {
            window_s: 100.0,
            requests: 100,
            images_per_s,
            bound_images_per_s: Some(1.0),
            latency_s: Spread {
                mean: 0.007,
                p50: 0.007,
                p90: 0.02,
                p99: 0.05,
            },
            latency_by_size_s: BTreeMap::new(),
            ar_slots_busy: 0.5,
            denoisers_busy: 0.5,
            failed: 3,
        };
        let planned = Summary {
            images_per_s: 1.04 * images_per_s,
            ..measured.clone()
        };
        Outcome {
            name: "run".to_owned(),
            command: String::new(),
            origin: Origin {
                commit: Some("abc".to_owned()),
                date: "2026-01-02".to_owned(),
                machine: Machine {
                    cpu: "a processor".to_owned(),
                    cores: 2,
                },
            },
            load: load(flags).expect("a load"),
            admission: admission.to_owned(),
            denoisers: 14,
            ar_slots: 56,
            time_scale: 1.0,
            traced: false,
            measured,
            planned: Some(planned),
            cpu_ms_per_request: BTreeMap::new(),
        }
    }

    #[test]
    fn a_limit_stands_beside_what_was_measured() {
        let closed = "--concurrency 112 --requests 500";
        for (rate, ends) in [
            (
                0.98,
                "| 98.0 % | 0.0 | 0.0 | 0.1 | 50 % | 50 % | 3 | ≥ 97 % of the bound: met |",
            ),
            (
                0.96,
                "| 96.0 % | 0.0 | 0.0 | 0.1 | 50 % | 50 % | 3 | ≥ 97 % of the bound: **missed** |",
            ),
        ] {
            let lines = throughput(&[&outcome(closed, "continuous", rate)]);
            assert!(lines[2].ends_with(ends), "{lines:?}");
        }
        let few = "--concurrency 28 --requests 500";
        for (ours, found) in [
            (0.5, "| 1.25 | ≥ 1.25: met |"),
            (0.4, "| 1.00 | ≥ 1.25: **missed** |"),
        ] {
            let (ours, theirs) = (
                outcome(few, "continuous", ours),
                outcome(few, "batched", 0.4),
            );
            let lines = ratios(&[&ours, &theirs]);
            assert!(lines[2].ends_with(found), "{lines:?}");
        }
        let mut planned = outcome(few, "continuous", 0.5);
        assert!(plans(&[&planned])[2].ends_with("| within 5 %: met |"));
        planned.measured.latency_s.mean = 0.008;
        assert!(plans(&[&planned])[2].ends_with("| within 5 %: **missed** |"));
        let alone = outcome("--concurrency 1 --requests 100", "continuous", 140.0);
        let expected = "| 3 | ≥ 600/s: **missed**, p50 ≤ 8 ms: met, p99 ≤ 40 ms: **missed** |";
        let lines = dispatch(&[&alone]);
        assert!(lines[2].ends_with(expected), "{lines:?}");
    }

    #[test]
    fn an_open_load_has_no_share_of_the_bound() {
        let lines = throughput(&[&outcome("--rate 0.5", "continuous", 0.5)]);
        assert!(lines[2].contains("| 0.500 | 1.000 |  | 0.0 |"), "{lines:?}");
    }

    #[test]
    fn runs_of_one_machine_and_state_are_told_once() {
        let runs = [
            outcome("--rate 1", "continuous", 1.0),
            outcome("--rate 2", "continuous", 1.0),
        ];
        let expected = "Measured on 2026-01-02 on 2 cores of a processor, commit abc.";
        assert_eq!(origins(&runs), [expected]);
    }
}
