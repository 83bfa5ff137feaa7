//! Where the time of a finished picture went: every moment is a wait or a run of some stage, or nobody's. Pure.

use std::time::Duration;

use protocol::{ImageSize, OutputTimings, PriorUsage, UnixMillis};

/// What a picture waits for, as labels name it: a stage, or as a result for its gateway to hear of it.
pub(crate) const WAITS: [&str; 3] = ["ar", "denoise", "result"];

/// What works on a picture, as labels name it.
pub(crate) const RUNS: [&str; 3] = ["ar", "denoise", "decode"];

/// The first of them where the prior tokens were stored already, or came along: a look-up, and no engine's work.
pub(crate) const CACHED: &str = "cached";

/// In seconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Spent {
    /// In the order of [`WAITS`].
    pub(crate) waits: [f64; 3],
    /// In the order of [`RUNS`].
    pub(crate) runs: [f64; 3],
    /// Whether the first of the runs is [`CACHED`].
    pub(crate) cached: bool,
    /// By how much the whole differs from their sum.
    pub(crate) unattributed: f64,
}

impl Spent {
    /// Of an output of which this gateway heard at `heard_at`, `total` after it was accepted by the gateway's own clock,
    /// which no step of a wall clock moves. `None` where a stage was not reached.
    ///
    /// What earlier attempts took is part of the wait for the one that finished.
    pub(crate) fn of(
        timings: &OutputTimings,
        usage: Option<&PriorUsage>,
        heard_at: UnixMillis,
        total: Duration,
    ) -> Option<Self> {
        let (ar_started_at, ar_finished_at) = (timings.ar_started_at?, timings.ar_finished_at?);
        let denoise_started_at = timings.denoise_started_at?;
        let denoise_finished_at = timings.denoise_finished_at?;
        let between = |from: UnixMillis, to: UnixMillis| {
            Duration::from_millis(to.saturating_sub(from)).as_secs_f64()
        };
        let waits = [
            between(timings.accepted_at, ar_started_at),
            between(ar_finished_at, denoise_started_at),
            between(timings.finished_at, heard_at),
        ];
        let runs = [
            between(ar_started_at, ar_finished_at),
            between(denoise_started_at, denoise_finished_at),
            between(denoise_finished_at, timings.finished_at),
        ];
        let known: f64 = waits.iter().chain(&runs).sum();
        Some(Self {
            waits,
            runs,
            cached: usage.is_some_and(|usage| usage.cached),
            unattributed: (total.as_secs_f64() - known).abs(),
        })
    }
}

/// Labels of sizes.
pub(crate) const SIZE_CLASSES: [&str; 4] = ["small", "medium", "large", "huge"];

/// The label of a size: what a picture costs grows with its pixels, and there are hundreds of sizes.
pub(crate) fn size_class(size: ImageSize) -> &'static str {
    let pixels = u64::from(size.width()) * u64::from(size.height());
    let [small, medium, large, huge] = SIZE_CLASSES;
    let classes = [(512, small), (1024, medium), (1536, large)];
    let class = classes.iter().find(|(side, _)| pixels <= side * side);
    class.map_or(huge, |(_, class)| class)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sum(spent: &Spent) -> f64 {
        spent.waits.iter().chain(&spent.runs).sum()
    }

    proptest! {
        #[test]
        fn waits_and_runs_are_the_whole_where_clocks_agree(
            start in 0_u64..1 << 41, parts in prop::array::uniform6(0_u64..600_000), offset_us in 0_u64..1_000,
        ) {
            let mut at = start;
            let mut next = |part: u64| { at += part; at };
            let timings = OutputTimings {
                accepted_at: start,
                ar_started_at: Some(next(parts[0])),
                ar_finished_at: Some(next(parts[1])),
                denoise_started_at: Some(next(parts[2])),
                denoise_finished_at: Some(next(parts[3])),
                finished_at: next(parts[4]),
            };
            let heard_at = next(parts[5]);
            // Stamps are whole milliseconds, the whole is not.
            let total = Duration::from_millis(heard_at - start) + Duration::from_micros(offset_us);
            let spent = Spent::of(&timings, None, heard_at, total).unwrap();
            prop_assert!(spent.unattributed <= 0.001 + 1e-6, "{spent:?}");
            prop_assert!((sum(&spent) - total.as_secs_f64()).abs() <= 0.001 + 1e-6);
        }
    }

    #[test]
    fn a_clock_that_differs_shows_as_unattributed() {
        let timings = OutputTimings {
            accepted_at: 10_000,
            ar_started_at: Some(11_000),
            ar_finished_at: Some(12_000),
            // This denoiser's clock is 5 s behind.
            denoise_started_at: Some(7_500),
            denoise_finished_at: Some(8_500),
            finished_at: 8_600,
        };
        let spent = Spent::of(&timings, None, 13_700, Duration::from_millis(3_700)).unwrap();
        assert!((spent.unattributed - 4.5).abs() < 1e-9, "{spent:?}");
    }

    #[test]
    fn an_output_that_did_not_get_to_the_end_is_not_split() {
        let timings = OutputTimings {
            accepted_at: 10_000,
            ar_started_at: Some(11_000),
            finished_at: 12_000,
            ..OutputTimings::default()
        };
        let total = Duration::from_secs(2);
        assert_eq!(Spent::of(&timings, None, 12_000, total), None);
    }

    #[test]
    fn sizes_fall_into_four_classes() {
        for (size, class) in [
            ("512x512", "small"),
            ("1024x256", "small"),
            ("544x512", "medium"),
            ("1024x1024", "medium"),
            ("1152x1024", "large"),
            ("2048x2048", "huge"),
        ] {
            assert_eq!(size_class(size.parse().unwrap()), class, "{size}");
        }
    }
}
