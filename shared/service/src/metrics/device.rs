//! How long a device works.

use std::{cell::Cell, time::Instant};

use super::SecondsCounter;

/// Counts how long a device works, from its start to its drop: little by little, for a rate over a minute sees nothing of
/// what takes two and is counted at its end. Each of its counters counts the same, so that what they are parts of adds up.
#[derive(Debug)]
pub struct DeviceClock<const N: usize> {
    counters: [SecondsCounter; N],
    /// Up to when they have counted.
    until: Cell<Instant>,
}

impl<const N: usize> DeviceClock<N> {
    /// The device works from now on.
    pub fn start(counters: [SecondsCounter; N]) -> Self {
        Self {
            counters,
            until: Cell::new(Instant::now()),
        }
    }

    /// It has worked until now, which this returns.
    pub fn worked(&self) -> Instant {
        let now = Instant::now();
        let seconds = now.duration_since(self.until.replace(now)).as_secs_f64();
        for counter in &self.counters {
            counter.inc_by(seconds);
        }
        now
    }
}

impl<const N: usize> Drop for DeviceClock<N> {
    fn drop(&mut self) {
        self.worked();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_seen_to_work_on_the_way_and_to_the_end_by_each_counter_alike() {
        let counters: [SecondsCounter; 2] = Default::default();
        let told = || counters.each_ref().map(SecondsCounter::get);
        let clock = DeviceClock::start(counters.clone());
        assert_eq!(told(), [0.0, 0.0]);
        let mut before = 0.0;
        let last = |clock: DeviceClock<2>| drop(clock);
        let since = clock.until.get();
        let now = clock.worked();
        let [whole, part] = told();
        assert_eq!(whole, (now - since).as_secs_f64());
        assert_eq!(whole, part);
        before += whole;
        // A clock's tick: the end counts what came after the last step.
        while Instant::now() == now {}
        last(clock);
        let [whole, part] = told();
        assert!(whole > before, "{whole} after {before}");
        assert_eq!(whole, part);
    }
}
