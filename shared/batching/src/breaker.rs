//! When a worker stops trusting itself.

use std::{iter::successors, time::Duration};

use protocol::OutputId;

/// Pause before the first self-test: what was bad may have been three bad prompts.
const SELF_TEST_PAUSE_MIN: Duration = Duration::from_secs(2);

/// Longest pause between later ones: a broken device does not heal by being asked, a restarted driver or server is
/// noticed in a minute.
const SELF_TEST_PAUSE_MAX: Duration = Duration::from_secs(60);

/// The pause before each self-test of a worker that takes no work; without end.
pub fn self_test_pauses() -> impl Iterator<Item = Duration> {
    successors(Some(SELF_TEST_PAUSE_MIN), |pause| {
        Some((*pause * 2).min(SELF_TEST_PAUSE_MAX))
    })
}

/// Counts failures of the worker's own engine in a row. One success forgives them all, and an output that fails again
/// counts once: a bad prompt now and then is no reason to leave, an engine that fails at everything is.
#[derive(Debug, Clone)]
pub struct Breaker {
    failures_max: u32,
    failures: u32,
    last: Option<OutputId>,
}

impl Breaker {
    /// Opens after `failures_max` failures in a row; 0 counts as 1.
    pub fn new(failures_max: u32) -> Self {
        Self {
            failures_max: failures_max.max(1),
            failures: 0,
            last: None,
        }
    }

    /// The engine did its work.
    pub fn succeeded(&mut self) {
        (self.failures, self.last) = (0, None);
    }

    /// The engine failed at `output`.
    pub fn failed(&mut self, output: OutputId) {
        if self.last != Some(output) {
            self.failures = self.failures.saturating_add(1);
        }
        self.last = Some(output);
    }

    /// Whether the worker should take no more work before a self-test succeeds; with the failures in a row.
    pub fn is_open(&self) -> Option<u32> {
        (self.failures >= self.failures_max).then_some(self.failures)
    }
}

#[cfg(test)]
mod tests {
    use protocol::{JobId, OutputIndex};

    use super::*;

    fn output(job: u128) -> OutputId {
        JobId::from_u128(job).output(OutputIndex::FIRST)
    }

    #[test]
    fn self_tests_come_ever_more_seldom_and_never_end() {
        let pauses: Vec<u64> = self_test_pauses()
            .take(7)
            .map(|pause| pause.as_secs())
            .collect();
        assert_eq!(pauses, [2, 4, 8, 16, 32, 60, 60]);
    }

    #[test]
    fn only_failures_in_a_row_open_it() {
        let mut breaker = Breaker::new(3);
        for _ in 0..2 {
            breaker.failed(output(1));
            breaker.failed(output(2));
            assert_eq!(breaker.is_open(), None);
            breaker.succeeded();
        }
        for job in 1..=3 {
            breaker.failed(output(job));
        }
        assert_eq!(breaker.is_open(), Some(3));
        breaker.succeeded();
        assert_eq!(breaker.is_open(), None);
    }

    #[test]
    fn an_output_that_fails_again_and_again_is_one_failure() {
        let mut breaker = Breaker::new(2);
        for _ in 0..5 {
            breaker.failed(output(1));
        }
        assert_eq!(breaker.is_open(), None);
        breaker.failed(output(2));
        assert_eq!(breaker.is_open(), Some(2));
    }
}
