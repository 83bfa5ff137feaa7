//! `fresco plan`: the smallest fleet that keeps a load within an SLO, found by simulating fleets.

pub(crate) mod simulation;

use std::time::Duration;

use batching::Policy;
use protocol::limits::AR_SLOTS_MAX;
use replay::Times;
use serde::Serialize;
use service::{Admission, exit::Failure};

use crate::{
    args::PlanArgs,
    bench::{
        load::Load,
        summary::{Spread, Stages, Summary, summarise},
    },
    table, terminal,
};

/// The AR-batcher's default for batches of one size, in the table's time.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// More are not looked for: what needs more needs several deployments.
const DENOISERS_MAX: usize = 1_024;

/// The rules as they are simulated; under batched admission a batch waits for company for `delay` of the table's time.
pub(crate) const fn policy(admission: Admission, delay: Duration) -> Policy {
    match admission {
        Admission::Continuous => Policy::Continuous,
        Admission::Batched => Policy::Batched { delay },
    }
}

/// A fleet and what it makes of the load.
#[derive(Debug, Serialize)]
struct Plan {
    denoisers: usize,
    ar_slots: usize,
    #[serde(flatten)]
    summary: Summary,
}

/// Prints the plan.
pub(crate) fn run(args: &PlanArgs) -> Result<(), Failure> {
    let times = Times::read(&args.times, 1.0).map_err(|error| Failure::unusable(&error))?;
    let load = Load::new(&args.load).map_err(Failure::Unusable)?;
    let plan = find(&times, &load, args)?;
    if args.json {
        let text = serde_json::to_string_pretty(&plan).map_err(|error| Failure::failed(&error))?;
        terminal::say(text);
    } else {
        lines(&plan).iter().for_each(terminal::say);
    }
    let Some(lacks) = lacks(&plan.summary, &load, args.slo_p99_s) else {
        return Ok(());
    };
    Err(Failure::Failed(format!(
        "{lacks}: with what was given no fleet of up to {DENOISERS_MAX} denoisers and {AR_SLOTS_MAX} AR slots is enough"
    )))
}

/// What a fleet falls short of. However short a queue looks after so many requests: where as many come as the fleet can
/// do at most, or more, it grows for ever.
fn lacks(summary: &Summary, load: &Load, slo_p99_s: f64) -> Option<String> {
    if let (Some(comes), Some(bound)) = (load.images_per_s(), summary.bound_images_per_s)
        && bound <= comes
    {
        return Some(format!(
            "{comes} images/s come and {bound:.4} can be done at most"
        ));
    }
    let p99 = summary.latency_s.p99;
    (p99 > slo_p99_s)
        .then(|| format!("99 of 100 requests take up to {p99:.1} s, not {slo_p99_s} s"))
}

/// The fewest denoisers, and for them the fewest slots. More of either is taken not to hurt; whatever comes out was
/// simulated. When nothing keeps the SLO, the largest fleet.
fn find(times: &Times, load: &Load, args: &PlanArgs) -> Result<Plan, Failure> {
    let simulated = |denoisers, ar_slots| {
        let stages = Stages {
            denoisers,
            ar_slots,
        };
        let record = simulation::simulate(times, load, stages, policy(args.admission, BATCH_DELAY));
        summarise(&record, load, stages, times)
    };
    let meets = |denoisers, ar_slots| {
        let summary = simulated(denoisers, ar_slots);
        summary.is_some_and(|summary| lacks(&summary, load, args.slo_p99_s).is_none())
    };
    let slots_max = usize::from(args.ar_slots.unwrap_or(AR_SLOTS_MAX));
    let denoisers = match args.denoisers {
        Some(denoisers) => denoisers.into(),
        None => least(DENOISERS_MAX, |denoisers| meets(denoisers, slots_max)),
    };
    let ar_slots = match args.ar_slots {
        Some(ar_slots) => ar_slots.into(),
        None => least(AR_SLOTS_MAX.into(), |ar_slots| meets(denoisers, ar_slots)),
    };
    let none = || Failure::Unusable("nothing is left to count: more --requests".to_owned());
    Ok(Plan {
        denoisers,
        ar_slots,
        summary: simulated(denoisers, ar_slots).ok_or_else(none)?,
    })
}

/// The first of `1..=max` that is enough, if every larger one is too; `max` when none is.
fn least(max: usize, is_enough: impl Fn(usize) -> bool) -> usize {
    let (mut below, mut enough) = (0, max);
    while enough - below > 1 {
        let middle = usize::midpoint(below, enough);
        if is_enough(middle) {
            enough = middle;
        } else {
            below = middle;
        }
    }
    enough
}

fn lines(plan: &Plan) -> Vec<String> {
    let Plan {
        denoisers,
        ar_slots,
        summary,
    } = plan;
    let head = [
        "DENOISERS",
        "AR SLOTS",
        "IMAGES/S",
        "BOUND",
        "P50",
        "P90",
        "P99",
        "AR BUSY",
        "DENOISERS BUSY",
    ];
    let Spread { p50, p90, p99, .. } = summary.latency_s;
    let bound = summary.bound_images_per_s;
    let cells = [
        denoisers.to_string(),
        ar_slots.to_string(),
        format!("{:.4}", summary.images_per_s),
        bound.map_or_else(|| "none".to_owned(), |bound| format!("{bound:.4}")),
        format!("{p50:.1} s"),
        format!("{p90:.1} s"),
        format!("{p99:.1} s"),
        format!("{:.0} %", summary.ar_slots_busy * 100.0),
        format!("{:.0} %", summary.denoisers_busy * 100.0),
    ];
    table::lines(&head, &[cells.to_vec()])
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use replay::{ArTimes, DenoiseTimes, Table};

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        plan: PlanArgs,
    }

    /// A fleet for this load, with rows of 20 s and pictures of 10 s.
    fn plan(flags: &str) -> Plan {
        plan_with(10.0, flags)
    }

    fn plan_with(picture_s: f64, flags: &str) -> Plan {
        let cli = Cli::parse_from(format!("x --times t {flags}").split_whitespace());
        let table = Table {
            ar: ArTimes::new(&[(1, 20_000.0)], 1281),
            denoise: DenoiseTimes {
                step_ms: 0.0,
                decode_ms: picture_s * 1_000.0,
            },
        };
        let times = Times::new(table, 1.0).expect("in range");
        let load = Load::new(&cli.plan.load).expect("a load");
        find(&times, &load, &cli.plan).expect("something counts")
    }

    #[test]
    fn the_first_that_is_enough_is_found() {
        for first in 1..=9 {
            assert_eq!(least(9, |number| number >= first), first);
        }
        assert_eq!(least(9, |_| false), 9);
    }

    #[test]
    fn a_fleet_is_as_small_as_the_slo_allows() {
        // Eight clients that never wait for each other are with the AR stage for 2/3 of the time and with the
        // denoisers for 1/3: 5.3 of them and 2.7, once they do not come all at once any more.
        let quick = plan("--concurrency 8 --requests 200 --slo-p99-s 30.1");
        assert_eq!((quick.denoisers, quick.ar_slots), (3, 6));
        // In twice the time, half of it.
        let slow = plan("--concurrency 8 --requests 200 --slo-p99-s 61");
        assert!(slow.denoisers <= 2 && slow.ar_slots <= 3, "{slow:?}");
        assert!(slow.summary.latency_s.p99 <= 61.0);
    }

    #[test]
    fn a_fleet_for_an_open_load_can_do_more_than_comes() {
        // 6 denoisers of 12.2 s do 0.4918 images/s: the queue of 0.5/s grows so slowly that 500 requests do not show it.
        let six = plan_with(12.2, "--rate 0.5 --slo-p99-s 120 --denoisers 6");
        assert!(six.summary.latency_s.p99 < 120.0, "{six:?}");
        let bound = |plan: &Plan| plan.summary.bound_images_per_s.expect("a bound");
        assert!(bound(&six) < 0.5, "{six:?}");
        let found = plan_with(12.2, "--rate 0.5 --slo-p99-s 120");
        assert!(found.denoisers > 6 && bound(&found) > 0.5, "{found:?}");
        // Twice as many pictures of half as many requests are the same work.
        let pairs = plan_with(12.2, "--rate 0.25 -n 2 --slo-p99-s 120");
        assert!(pairs.denoisers > 6 && bound(&pairs) > 0.5, "{pairs:?}");
    }

    #[test]
    fn what_is_given_stays() {
        let plan = plan("--concurrency 8 --requests 200 --slo-p99-s 1 --denoisers 3 --ar-slots 5");
        assert_eq!((plan.denoisers, plan.ar_slots), (3, 5));
        let bound = plan.summary.bound_images_per_s.expect("a bound");
        assert!(plan.summary.images_per_s > 0.9 * bound);
    }
}
