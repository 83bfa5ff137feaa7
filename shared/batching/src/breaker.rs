//! When a worker stops trusting itself.

/// Counts failures of the worker's own engine in a row. One success forgives them all: a bad prompt now and then is
/// no reason to leave, an engine that fails at everything is.
#[derive(Debug, Clone)]
pub struct Breaker {
    failures_max: u32,
    failures: u32,
}

impl Breaker {
    /// Opens after `failures_max` failures in a row; 0 counts as 1.
    pub fn new(failures_max: u32) -> Self {
        Self {
            failures_max: failures_max.max(1),
            failures: 0,
        }
    }

    /// The engine did its work.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The engine failed.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    /// Whether the worker should take no more work before a self-test succeeds; with the failures in a row.
    pub fn is_open(&self) -> Option<u32> {
        (self.failures >= self.failures_max).then_some(self.failures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_in_a_row_open_it() {
        let mut breaker = Breaker::new(3);
        for _ in 0..2 {
            breaker.failed();
            breaker.failed();
            assert_eq!(breaker.is_open(), None);
            breaker.succeeded();
        }
        for _ in 0..3 {
            breaker.failed();
        }
        assert_eq!(breaker.is_open(), Some(3));
        breaker.succeeded();
        assert_eq!(breaker.is_open(), None);
    }
}
