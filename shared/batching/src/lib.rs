//! Who runs together in the AR stage, as a pure rule: events in, actions out, the time an argument.
//! (Other rules here: [`admission`], who is let in; [`may_start`] and [`Breaker`], who tries again.)
//!
//! The unit is a **row**: one output of one request. A request for `n` outputs is `n` rows and takes `n` slots, and
//! may be split over batches. Rows of one batch have one size, because the native engine decodes equal lengths
//! together.
//!
//! The rule: the oldest waiting row decides the size; rows of that size join it, oldest first, up to
//! `slots_max`. The batch starts when it is full or when its oldest row has waited `delay`. One batch runs at a
//! time, so whatever waits while one runs forms the next one without further delay.
//!
//! A row that took a worker down before, or failed, runs alone: a bad one costs its companions one batch, not their
//! attempts.
//!
//! Oldest first over all sizes keeps a rare size from starving; the price is that a frequent size may wait for a
//! batch of one. Letting full batches overtake would be faster on average and unbounded in the worst case.

#![deny(missing_docs)]

pub mod admission;
mod breaker;
mod retry;

pub use breaker::{Breaker, self_test_pauses};
pub use retry::{Others, Start, is_retried, is_tried, may_start};

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use protocol::{ImageSize, OutputId};

/// The bounds of a batch.
#[derive(Debug, Clone, Copy)]
pub struct BatchLimits {
    /// Most rows in one batch, and most rows that may wait before no more work is wanted. At least 1.
    pub slots_max: usize,
    /// How long a row may wait for company while the engine is idle.
    pub delay: Duration,
}

/// One output that needs prior tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The output.
    pub output: OutputId,
    /// Rows of one batch have one size.
    pub size: ImageSize,
    /// It has no company: an earlier attempt failed or vanished.
    pub alone: bool,
}

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request's rows came in.
    Arrived(Vec<Row>),
    /// The running batch ended, well or not.
    Finished,
    /// These outputs need no prior any more: those of them that wait do not run.
    Withdrawn(Vec<OutputId>),
    /// Time went by: the instant of an earlier [`Action::WakeAt`] has come.
    Woken,
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Run these rows together. All have one size, and there is at least one.
    Run(Vec<Row>),
    /// Send [`Event::Woken`] at this instant; replaces an earlier wish.
    WakeAt(Instant),
}

struct Waiting {
    row: Row,
    since: Instant,
}

/// Forms batches. Deterministic: the same events give the same actions.
pub struct BatchFormer {
    limits: BatchLimits,
    /// In order of arrival.
    waiting: VecDeque<Waiting>,
    running: bool,
}

impl BatchFormer {
    /// With nothing waiting. A `slots_max` of 0 counts as 1: a batch of none would never end.
    pub fn new(limits: BatchLimits) -> Self {
        let limits = BatchLimits {
            slots_max: limits.slots_max.max(1),
            ..limits
        };
        Self {
            limits,
            waiting: VecDeque::new(),
            running: false,
        }
    }

    /// Whether another request should be taken from the queue: what waits does not fill the next batch yet. Work
    /// beyond that waits in the queue, where any other batcher may take it.
    pub fn wants_more(&self) -> bool {
        self.waiting.len() < self.limits.slots_max
    }

    /// Takes an event at `now`, says what to do.
    pub fn apply(&mut self, event: Event, now: Instant) -> Option<Action> {
        match event {
            Event::Arrived(rows) => self
                .waiting
                .extend(rows.into_iter().map(|row| Waiting { row, since: now })),
            Event::Finished => self.running = false,
            Event::Withdrawn(outputs) => self
                .waiting
                .retain(|waiting| !outputs.contains(&waiting.row.output)),
            Event::Woken => {}
        }
        self.next_action(now)
    }

    fn next_action(&mut self, now: Instant) -> Option<Action> {
        if self.running {
            return None;
        }
        let oldest = self.waiting.front()?;
        let (first, starts_at) = (oldest.row, oldest.since + self.limits.delay);
        if first.alone {
            self.running = true;
            return self.waiting.pop_front().map(|w| Action::Run(vec![w.row]));
        }
        let rows = self
            .waiting
            .iter()
            .filter(|waiting| joins(&waiting.row, &first))
            .count();
        if rows < self.limits.slots_max && now < starts_at {
            return Some(Action::WakeAt(starts_at));
        }
        self.running = true;
        Some(Action::Run(self.take(first)))
    }

    /// Removes the oldest rows that go with `first`, up to a full batch.
    fn take(&mut self, first: Row) -> Vec<Row> {
        let mut taken = Vec::new();
        let slots_max = self.limits.slots_max;
        self.waiting.retain(|waiting| {
            let joins = joins(&waiting.row, &first) && taken.len() < slots_max;
            if joins {
                taken.push(waiting.row);
            }
            !joins
        });
        taken
    }
}

/// Whether `row` may share a batch with `first`.
fn joins(row: &Row, first: &Row) -> bool {
    row.size == first.size && !row.alone
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::{JobId, OutputIndex};

    use super::*;

    const DELAY: Duration = Duration::from_millis(20);

    fn former(slots_max: usize) -> BatchFormer {
        BatchFormer::new(BatchLimits {
            slots_max,
            delay: DELAY,
        })
    }

    fn rows(job: u128, outputs: u8, side: u32) -> Vec<Row> {
        let size = ImageSize::new(side, side).expect("a multiple of 32");
        OutputIndex::first(outputs)
            .map(|index| Row {
                output: JobId::from_u128(job).output(index),
                size,
                alone: false,
            })
            .collect()
    }

    #[test]
    fn a_lone_row_waits_for_company_and_then_runs_a14() {
        let (mut former, start) = (former(4), Instant::now());
        let row = rows(1, 1, 64);
        assert_eq!(
            former.apply(Event::Arrived(row.clone()), start),
            Some(Action::WakeAt(start + DELAY))
        );
        assert_eq!(
            former.apply(Event::Woken, start + DELAY / 2),
            Some(Action::WakeAt(start + DELAY))
        );
        assert_eq!(
            former.apply(Event::Woken, start + DELAY),
            Some(Action::Run(row))
        );
        assert_eq!(former.apply(Event::Woken, start + DELAY * 2), None);
    }

    #[test]
    fn a_full_batch_runs_at_once() {
        let (mut former, start) = (former(2), Instant::now());
        assert_eq!(
            former.apply(Event::Arrived(rows(1, 2, 64)), start),
            Some(Action::Run(rows(1, 2, 64)))
        );
    }

    #[test]
    fn n_outputs_take_n_slots_and_may_be_split() {
        let (mut former, start) = (former(3), Instant::now());
        let five = rows(1, 5, 64);
        assert_eq!(
            former.apply(Event::Arrived(five.clone()), start),
            Some(Action::Run(five[..3].to_vec()))
        );
        let finished = former.apply(Event::Finished, start);
        assert_eq!(finished, Some(Action::WakeAt(start + DELAY)));
        assert_eq!(
            former.apply(Event::Woken, start + DELAY),
            Some(Action::Run(five[3..].to_vec()))
        );
    }

    #[test]
    fn other_sizes_do_not_join_and_the_oldest_goes_first_a15() {
        let (mut former, start) = (former(2), Instant::now());
        former.apply(Event::Arrived(rows(1, 1, 64)), start);
        // A full batch of another size does not overtake.
        assert_eq!(
            former.apply(Event::Arrived(rows(2, 2, 96)), start),
            Some(Action::WakeAt(start + DELAY))
        );
        assert_eq!(
            former.apply(Event::Woken, start + DELAY),
            Some(Action::Run(rows(1, 1, 64)))
        );
        assert_eq!(
            former.apply(Event::Finished, start + DELAY),
            Some(Action::Run(rows(2, 2, 96)))
        );
    }

    #[test]
    fn a_suspect_row_runs_alone_and_joins_nobody() {
        let (mut former, start) = (former(4), Instant::now());
        let (before, mut suspect, after) = (rows(1, 1, 64), rows(2, 1, 64), rows(3, 1, 64));
        suspect[0].alone = true;
        former.apply(Event::Arrived(before.clone()), start);
        former.apply(Event::Arrived(suspect.clone()), start);
        former.apply(Event::Arrived(after.clone()), start);
        let company = [before, after].concat();
        assert_eq!(
            former.apply(Event::Woken, start + DELAY),
            Some(Action::Run(company))
        );
        assert_eq!(
            former.apply(Event::Finished, start + DELAY),
            Some(Action::Run(suspect))
        );
    }

    #[test]
    fn a_withdrawn_row_does_not_run() {
        let (mut former, start) = (former(4), Instant::now());
        let (gone, kept) = (rows(1, 2, 64), rows(2, 1, 64));
        former.apply(Event::Arrived(gone.clone()), start);
        former.apply(Event::Arrived(kept.clone()), start);
        let outputs = gone.iter().map(|row| row.output).collect();
        former.apply(Event::Withdrawn(outputs), start);
        assert_eq!(
            former.apply(Event::Woken, start + DELAY),
            Some(Action::Run(kept))
        );
    }

    #[test]
    fn one_batch_runs_at_a_time() {
        let (mut former, start) = (former(1), Instant::now());
        assert!(matches!(
            former.apply(Event::Arrived(rows(1, 1, 64)), start),
            Some(Action::Run(_))
        ));
        assert_eq!(former.apply(Event::Arrived(rows(2, 1, 64)), start), None);
        assert_eq!(
            former.apply(Event::Finished, start),
            Some(Action::Run(rows(2, 1, 64)))
        );
    }

    #[test]
    fn no_more_is_wanted_once_the_next_batch_is_full() {
        let (mut former, start) = (former(2), Instant::now());
        assert!(former.wants_more());
        former.apply(Event::Arrived(rows(1, 2, 64)), start);
        assert!(former.wants_more(), "a running batch does not count");
        former.apply(Event::Arrived(rows(2, 2, 64)), start);
        assert!(!former.wants_more());
    }

    proptest! {
        /// Whatever comes in, every row runs exactly once, in batches of one size within the limit, and no row
        /// overtakes an older one of its size.
        #[test]
        fn every_row_runs_once_in_order(
            slots_max in 1usize..6,
            arrivals in prop::collection::vec((1u8..=10, 1u32..4, 0u64..40), 1..20),
        ) {
            let mut former = former(slots_max);
            let mut now = Instant::now();
            let (mut came, mut ran) = (Vec::new(), Vec::new());
            let mut actions = Vec::new();
            for (job, (outputs, side, pause_ms)) in (0u128..).zip(arrivals) {
                now += Duration::from_millis(pause_ms);
                let rows = rows(job, outputs, side * 32);
                came.extend(rows.clone());
                actions.extend(former.apply(Event::Arrived(rows), now));
            }
            let mut turns = 0;
            while let Some(action) = actions.pop() {
                match action {
                    Action::Run(batch) => {
                        prop_assert!(!batch.is_empty() && batch.len() <= slots_max);
                        prop_assert!(batch.iter().all(|row| row.size == batch[0].size));
                        ran.extend(batch);
                        actions.clear();
                        actions.extend(former.apply(Event::Finished, now));
                    }
                    Action::WakeAt(at) => {
                        now = now.max(at);
                        actions.extend(former.apply(Event::Woken, now));
                    }
                }
                turns += 1;
                prop_assert!(turns < 10_000);
            }
            prop_assert_eq!(ran.len(), came.len());
            for size in came.iter().map(|row| row.size) {
                let of = |rows: &[Row]| rows.iter().filter(|row| row.size == size).copied().collect::<Vec<_>>();
                prop_assert_eq!(of(&ran), of(&came));
            }
        }
    }
}
