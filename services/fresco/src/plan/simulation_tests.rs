//! Cases whose figures can be worked out by hand.

use std::collections::BTreeSet;

use replay::{ArTimes, DenoiseTimes, Table};

use super::*;
use crate::bench::{
    load::tests::load,
    summary::{Summary, summarise},
};

const DELAY: Policy = Policy::Batched {
    delay: Duration::from_millis(20),
};

/// Rows of 20 s whoever else runs, and pictures of 10 s; or what else is told. 1024x1024 are 1281 tokens.
fn times(rows_ms: &'static [(u32, f64)], picture_s: f64) -> Times {
    let table = Table {
        ar: ArTimes::new(rows_ms, 1281),
        denoise: DenoiseTimes {
            step_ms: 0.0,
            decode_ms: picture_s * 1_000.0,
        },
    };
    Times::new(table, 1.0).expect("in range")
}

const FLAT: &[(u32, f64)] = &[(1, 20_000.0)];

fn run(
    times: &Times,
    flags: &str,
    (ar_slots, denoisers): (usize, usize),
    policy: Policy,
) -> Record {
    let load = load(flags).expect("a load");
    let stages = Stages {
        denoisers,
        ar_slots,
    };
    simulate(times, &load, stages, policy)
}

fn figures(times: &Times, flags: &str, stages: (usize, usize), policy: Policy) -> Summary {
    let record = run(times, flags, stages, policy);
    let (ar_slots, denoisers) = stages;
    let stages = Stages {
        denoisers,
        ar_slots,
    };
    summarise(&record, &load(flags).expect("a load"), stages, times).expect("something counts")
}

fn assert_near(found: f64, expected: f64) {
    assert!(
        (found - expected).abs() <= 0.01 * expected,
        "{found}, not {expected}"
    );
}

#[test]
fn one_client_waits_for_both_stages_and_nobody_else() {
    let summary = figures(
        &times(FLAT, 10.0),
        "--concurrency 1 --requests 20",
        (4, 2),
        Policy::Continuous,
    );
    assert_near(summary.latency_s.p50, 30.0);
    assert_near(summary.latency_s.p99, 30.0);
    assert_near(summary.images_per_s, 1.0 / 30.0);
    assert_near(summary.ar_slots_busy, 20.0 / 30.0 / 4.0);
    assert_near(summary.denoisers_busy, 10.0 / 30.0 / 2.0);
}

#[test]
fn the_narrowest_stage_sets_the_pace_and_the_rest_waits() {
    for (stages, expected) in [
        ((1, 9), 1.0 / 20.0),
        ((9, 1), 1.0 / 10.0),
        ((4, 2), 2.0 / 10.0),
    ] {
        let summary = figures(
            &times(FLAT, 10.0),
            "--concurrency 12 --requests 200",
            stages,
            Policy::Continuous,
        );
        assert_near(summary.images_per_s, expected);
        // Little's law.
        assert_near(summary.latency_s.mean, 12.0 / expected);
        assert_near(
            summary.images_per_s,
            summary.bound_images_per_s.expect("a bound"),
        );
    }
}

#[test]
fn n_pictures_of_a_request_are_painted_at_once() {
    let summary = figures(
        &times(FLAT, 10.0),
        "--concurrency 1 --requests 20 -n 8",
        (8, 8),
        Policy::Continuous,
    );
    assert_near(summary.latency_s.p50, 30.0);
    assert_near(summary.images_per_s, 8.0 / 30.0);
}

#[test]
fn requests_at_random_wait_as_a_queue_with_one_server_does() {
    // M/D/1 of 20 s at half load: half of the service time in the queue (Pollaczek and Khinchine), then both stages.
    let flags = "--rate 0.025 --requests 20000";
    let summary = figures(&times(FLAT, 0.0), flags, (1, 1), Policy::Continuous);
    assert!(
        (summary.latency_s.mean - 30.0).abs() < 1.0,
        "{}",
        summary.latency_s.mean
    );
    assert!((summary.ar_slots_busy - 0.5).abs() < 0.02);
}

#[test]
fn batches_of_one_size_take_turns_and_rows_of_any_mix_do_not() {
    let flags = "--concurrency 8 --requests 400 --sizes 1024x1024,1152x896";
    let flat = times(FLAT, 0.0);
    let continuous = figures(&flat, flags, (8, 99), Policy::Continuous);
    let batched = figures(&flat, flags, (8, 99), DELAY);
    assert_near(
        continuous.images_per_s,
        continuous.bound_images_per_s.expect("a bound"),
    );
    let ratio = continuous.images_per_s / batched.images_per_s;
    // Half of those that wait are of the size whose turn it is, at best.
    assert!((2.0..4.0).contains(&ratio), "{ratio}");
}

#[test]
fn every_request_is_answered_once_and_a_run_is_repeatable() {
    let times = times(&[(1, 20_400.0), (8, 25_900.0), (32, 33_200.0)], 12.2);
    for policy in [Policy::Continuous, DELAY] {
        for flags in [
            "--concurrency 28 --requests 300 --sizes 1024x1024,1152x896,512x512 -n 2",
            "--rate 0.4 --requests 300 --sizes 1024x1024,896x1152",
        ] {
            let record = run(&times, flags, (28, 14), policy);
            let requests: BTreeSet<_> =
                record.answers.iter().map(|answer| answer.request).collect();
            assert_eq!(requests, (0..300).collect());
            assert_eq!(record.answers.len(), 300);
            let again = run(&times, flags, (28, 14), policy);
            assert_eq!(again.answers, record.answers);
        }
    }
}

#[test]
fn the_published_fleet_is_near_its_bound_in_any_mix() {
    let times = times(
        &[
            (1, 20_400.0),
            (2, 21_300.0),
            (4, 22_800.0),
            (8, 25_900.0),
            (16, 29_400.0),
            (32, 33_200.0),
        ],
        12.2,
    );
    let sizes = "1024x1024,1152x896,896x1152,1216x832,832x1216,1344x768,768x1344,1536x640";
    for (flags, stages) in [
        (
            format!("--concurrency 28 --requests 600 --sizes {sizes}"),
            (28, 14),
        ),
        (
            format!("--concurrency 112 --requests 1200 --sizes {sizes}"),
            (56, 14),
        ),
    ] {
        let summary = figures(&times, &flags, stages, Policy::Continuous);
        let share = summary.images_per_s / summary.bound_images_per_s.expect("a bound");
        assert!(
            (0.95..1.01).contains(&share),
            "{share} of the bound: {flags}"
        );
    }
}
