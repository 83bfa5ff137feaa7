//! How far the AR stage runs ahead of the denoisers: far enough to keep them fed, and no further, because what waits
//! behind the AR stage has no order any more. Jobs wait where priority acts: in front of it.
//!
//! The broker is asked now and then how many outputs are at the denoise stage. In between the estimate follows what
//! is seen from here: outputs that this batcher fanned out, and results that are announced. Another batcher's
//! fan-outs come with the next look, and an error that ends an output before the denoise stage is taken for an end
//! there; both are wrong for one look at most.
//!
//! Both stages together hold at most [`Backlog::ahead_max`] outputs and as many rows as have to be under way for the
//! denoisers never to wait: what they end in a second times the seconds of a row, both measured here. So each end lets one
//! row start. To let rows start whenever the denoise stage alone is below its bound was tried: all free slots start at
//! once then, their rows end at once half a minute later, and the denoisers idle in between (88 % of the bound instead of
//! 98 %, at 56 slots and 14 denoisers). Not to count what has to be under way would starve them all the time.

use std::time::{Duration, Instant};

use crate::pace::Pace;

/// Outputs at the denoise stage for each denoiser: the one being painted and two waiting. One waiting would do if the
/// AR stage had rows to give at every moment; its rows come in waves when requests do.
pub const AHEAD_PER_DENOISER_MAX: u64 = 3;

/// What a look at the broker saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Outputs that wait for a denoiser or are with one.
    pub outputs: u64,
    /// Denoisers that take work.
    pub denoisers: u64,
    /// AR-batchers that take work: each has its share of the rows under way.
    pub batchers: u64,
}

/// What ended since the last time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// With a picture or an error.
    pub outputs: u64,
    /// With a picture. An error may end an output that no denoiser had.
    pub pictures: u64,
}

/// What had been seen from here when a look began.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    fanned_out: u64,
    ended: u64,
}

/// Estimates how many outputs are at the denoise stage.
#[derive(Debug, Clone)]
pub struct Backlog {
    /// The operator's bound, instead of the rule's.
    outputs_max: Option<u64>,
    look: Look,
    /// When `look` began.
    mark: Mark,
    fanned_out: u64,
    ended: u64,
    pace: Pace,
}

impl Backlog {
    /// Before the first look: nothing there, and one denoiser. `outputs_max` replaces [`AHEAD_PER_DENOISER_MAX`] for
    /// each denoiser.
    pub fn new(outputs_max: Option<u64>) -> Self {
        Self {
            outputs_max,
            look: Look {
                outputs: 0,
                denoisers: 1,
                batchers: 1,
            },
            mark: Mark {
                fanned_out: 0,
                ended: 0,
            },
            fanned_out: 0,
            ended: 0,
            pace: Pace::default(),
        }
    }

    /// To be taken when a look begins: what happens while it is under way may be missing from it.
    pub const fn mark(&self) -> Mark {
        Mark {
            fanned_out: self.fanned_out,
            ended: self.ended,
        }
    }

    /// What the look that began at `mark` saw.
    pub const fn looked(&mut self, mark: Mark, look: Look) {
        (self.mark, self.look) = (mark, look);
    }

    /// `outputs` went from here to the denoise stage.
    pub const fn fanned_out(&mut self, outputs: u64) {
        self.fanned_out += outputs;
    }

    /// A row ran on an engine of this batcher for `took`.
    pub fn ran(&mut self, took: Duration) {
        self.pace.ran(took);
    }

    /// These outputs ended, anywhere, since this was said the last time and until `now`.
    pub fn ended(&mut self, ends: Ends, now: Instant) {
        self.ended += ends.outputs;
        let denoisers = self.look.denoisers;
        let busy = self.estimate() >= denoisers;
        self.pace.painted(ends.pictures, denoisers, busy, now);
    }

    /// Outputs at the denoise stage, as far as is known here.
    pub const fn estimate(&self) -> u64 {
        let came = self.look.outputs + (self.fanned_out - self.mark.fanned_out);
        came.saturating_sub(self.ended - self.mark.ended)
    }

    /// Outputs at the denoise stage that keep the denoisers fed.
    pub fn ahead_max(&self) -> u64 {
        let by_rule = AHEAD_PER_DENOISER_MAX * self.look.denoisers.max(1);
        self.outputs_max.unwrap_or(by_rule)
    }

    /// How many more outputs may go to the denoise stage at once.
    pub fn room(&self) -> usize {
        count(self.ahead_max().saturating_sub(self.estimate()))
    }

    /// How many more rows may start, with so many of this batcher's outputs between the stages (`arriving`: written and not
    /// fanned out yet) and on its engines. Before the pace is known, any number for as long as there is room for what arrives.
    pub fn rows_room(&self, arriving: usize, running: usize) -> usize {
        let held = self.estimate().saturating_add(arriving as u64);
        match self.pace.rows_needed(self.look.denoisers) {
            Some(needed) => {
                let needed = needed.div_ceil(self.look.batchers.max(1));
                let held = held.saturating_add(running as u64);
                count((self.ahead_max() + needed).saturating_sub(held))
            }
            None if held < self.ahead_max() => usize::MAX,
            None => 0,
        }
    }
}

fn count(outputs: u64) -> usize {
    usize::try_from(outputs).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn painted(pictures: u64) -> Ends {
        Ends {
            outputs: pictures,
            pictures,
        }
    }

    fn looked(outputs: u64, denoisers: u64) -> Backlog {
        let mut backlog = Backlog::new(None);
        let look = Look {
            outputs,
            denoisers,
            batchers: 1,
        };
        backlog.looked(backlog.mark(), look);
        backlog
    }

    #[test]
    fn each_denoiser_has_one_output_and_two_waiting() {
        // outputs at the stage, denoisers → whether more may start
        let table = [
            (0, 0, 3),
            (2, 0, 1),
            (3, 0, 0),
            (3, 1, 0),
            (5, 2, 1),
            (6, 2, 0),
            (41, 14, 1),
            (42, 14, 0),
            (60, 14, 0),
        ];
        for (outputs, denoisers, room) in table {
            let backlog = looked(outputs, denoisers);
            assert_eq!(backlog.room(), room, "{outputs} at {denoisers}");
            // Nobody knows yet how many rows have to be under way.
            let rows = if room > 0 { usize::MAX } else { 0 };
            assert_eq!(backlog.rows_room(0, 100), rows, "{outputs} at {denoisers}");
        }
    }

    #[test]
    fn each_end_lets_one_row_start_once_the_pace_is_known() {
        let (mut backlog, start) = (looked(3, 1), Instant::now());
        // A picture a second and rows of ten: ten have to be under way.
        for second in 0..=4 {
            backlog.fanned_out(1);
            backlog.ran(Duration::from_secs(10));
            backlog.ended(painted(1), start + Duration::from_secs(second));
        }
        assert_eq!(backlog.estimate(), 3);
        for (running, room) in [(0, 10), (9, 1), (10, 0), (11, 0)] {
            assert_eq!(backlog.rows_room(0, running), room, "{running}");
        }
        backlog.ended(painted(1), start + Duration::from_secs(5));
        assert_eq!(backlog.rows_room(0, 10), 1);
        // What is written moves on, and stays under way.
        backlog.fanned_out(1);
        assert_eq!(backlog.rows_room(0, 9), 1);
    }

    #[test]
    fn between_looks_it_follows_what_comes_and_ends() {
        let mut backlog = looked(2, 1);
        let now = Instant::now();
        assert_eq!(backlog.room(), 1);
        backlog.fanned_out(1);
        assert_eq!(backlog.room(), 0);
        backlog.ended(painted(1), now);
        assert_eq!(backlog.room(), 1);
        assert_eq!(backlog.rows_room(1, 0), 0, "what arrives has a place there");
        // Ends of outputs that were never there.
        backlog.ended(painted(5), now);
        assert_eq!(backlog.estimate(), 0);
    }

    #[test]
    fn what_happens_during_a_look_is_not_forgotten() {
        let mut backlog = looked(0, 1);
        backlog.fanned_out(2);
        let mark = backlog.mark();
        backlog.fanned_out(1);
        let look = Look {
            outputs: 2,
            denoisers: 1,
            batchers: 1,
        };
        backlog.looked(mark, look);
        assert_eq!(backlog.estimate(), 3);
    }

    #[test]
    fn an_operators_bound_replaces_the_rule() {
        let mut backlog = Backlog::new(Some(1));
        assert_eq!(backlog.room(), 1);
        backlog.fanned_out(1);
        assert_eq!(backlog.room(), 0);
    }

    #[test]
    fn several_batchers_share_the_rows_under_way() {
        let (mut backlog, start) = (looked(3, 1), Instant::now());
        for second in 0..=4 {
            backlog.fanned_out(1);
            backlog.ran(Duration::from_secs(10));
            backlog.ended(painted(1), start + Duration::from_secs(second));
        }
        let look = Look {
            outputs: 3,
            denoisers: 1,
            batchers: 4,
        };
        backlog.looked(backlog.mark(), look);
        assert_eq!(backlog.rows_room(0, 0), 3);
    }

    #[test]
    fn errors_of_outputs_that_no_denoiser_had_say_nothing_of_its_pace() {
        let (mut backlog, start) = (looked(3, 1), Instant::now());
        backlog.ran(Duration::from_secs(10));
        for second in 0..=4 {
            let now = start + Duration::from_secs(second);
            backlog.fanned_out(1);
            backlog.ended(painted(1), now);
            let expired = Ends {
                outputs: 2,
                pictures: 0,
            };
            backlog.ended(expired, now);
            let look = Look {
                outputs: 3,
                denoisers: 1,
                batchers: 1,
            };
            backlog.looked(backlog.mark(), look);
        }
        assert_eq!(backlog.rows_room(0, 0), 10);
    }
}
