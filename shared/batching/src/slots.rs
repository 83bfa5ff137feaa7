//! Which engine has room.
//!
//! The slots that an operator gives an engine are a guess. One that says it is full is believed: its limit falls to
//! what it holds at that time, and rises by one with each call that ends, so that it is soon asked again.

use std::{
    cmp::Reverse,
    time::{Duration, Instant},
};

use crate::policy::Policy;

/// How long an engine is left alone that is full although nothing of ours runs there: nobody tells when it has room
/// again. Short against a row (20 s), long against a call that is refused (milliseconds).
pub const FULL_PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Engine {
    /// What the operator gave it.
    limit_max: usize,
    /// What it gets now.
    limit: usize,
    in_flight: usize,
    down: bool,
    rests_until: Option<Instant>,
}

/// The slots of every engine.
#[derive(Debug)]
pub(crate) struct Slots(Vec<Engine>);

impl Slots {
    pub(crate) fn new(limits: &[usize]) -> Self {
        let engine = |&limit: &usize| Engine {
            limit_max: limit.max(1),
            limit: limit.max(1),
            in_flight: 0,
            down: false,
            rests_until: None,
        };
        Self(limits.iter().map(engine).collect())
    }

    /// The engines that take rows and how many, the one with the most free slots first.
    pub(crate) fn free(&self, policy: Policy, now: Instant) -> Vec<(usize, usize)> {
        let free = self.0.iter().enumerate();
        let free = free.map(|(place, engine)| (place, engine.free(policy, now)));
        let mut free: Vec<_> = free.filter(|(_, free)| *free > 0).collect();
        free.sort_by_key(|(place, free)| (Reverse(*free), *place));
        free
    }

    /// When the first engine that rests may be asked again.
    pub(crate) fn rested_at(&self, now: Instant) -> Option<Instant> {
        let resting = self.0.iter().filter(|engine| !engine.down);
        let ends = resting.filter_map(|engine| engine.rests_until);
        ends.filter(|at| now < *at).min()
    }

    pub(crate) fn started(&mut self, engine: usize, rows: usize) {
        self.change(engine, |engine| engine.in_flight += rows);
    }

    pub(crate) fn finished(&mut self, engine: usize, rows: usize) {
        self.change(engine, |engine| {
            engine.in_flight -= rows;
            engine.limit = (engine.limit + 1).min(engine.limit_max);
        });
    }

    pub(crate) fn full(&mut self, engine: usize, rows: usize, now: Instant) {
        self.change(engine, |engine| {
            engine.in_flight -= rows;
            engine.limit = engine.in_flight.max(1);
            if engine.in_flight == 0 {
                engine.rests_until = Some(now + FULL_PAUSE);
            }
        });
    }

    pub(crate) fn down(&mut self, engine: usize) {
        self.change(engine, |engine| engine.down = true);
    }

    pub(crate) fn up(&mut self, engine: usize) {
        self.change(engine, |engine| {
            (engine.down, engine.rests_until) = (false, None);
        });
    }

    fn change(&mut self, engine: usize, change: impl FnOnce(&mut Engine)) {
        if let Some(engine) = self.0.get_mut(engine) {
            change(engine);
        }
    }
}

impl Engine {
    /// How many rows may start here now.
    fn free(&self, policy: Policy, now: Instant) -> usize {
        let rests = self.rests_until.is_some_and(|until| now < until);
        let one_batch = matches!(policy, Policy::Batched { .. });
        if self.down || rests || (one_batch && self.in_flight > 0) {
            return 0;
        }
        self.limit.saturating_sub(self.in_flight)
    }
}
