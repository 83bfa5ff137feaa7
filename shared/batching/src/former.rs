//! Forms batches: which rows run now, and on which engine.
//!
//! The unit is a **row**: one output of one request. A request for `n` outputs is `n` rows and takes `n` slots, which
//! may be slots of several engines. What goes next is the policy's to say, where it goes is a matter of slots, and
//! whether anything goes at all depends on the room at the next stage. Here the three meet.

use std::{collections::BTreeMap, time::Instant};

use protocol::{ImageSize, OutputId, PriorityClass};

use crate::{
    policy::{Next, Place, Policy, Waiting},
    slots::Slots,
};

/// The bounds of what runs and what waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Who is next.
    pub policy: Policy,
    /// Most rows in flight on each engine; 0 counts as 1.
    pub slots: Vec<usize>,
    /// Most rows of one class that may wait before no more of it is wanted; 0 counts as 1. Per class, so that a flood
    /// of one class never hides the work of another.
    pub waiting_max: usize,
}

/// One output that needs prior tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The output.
    pub output: OutputId,
    /// In pixels.
    pub size: ImageSize,
    /// Of its request.
    pub class: PriorityClass,
    /// When it began to wait, anywhere.
    pub arrived: Instant,
    /// When it is too late for it.
    pub deadline: Instant,
    /// A suspect: earlier attempts failed or vanished. It shares no batch with anybody, and no engine with another one.
    pub alone: bool,
}

/// Names one [`Action::Run`]; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BatchId(u64);

/// What happened.
#[derive(Debug, Clone)]
pub enum Event {
    /// A request's rows came in, or come again after an attempt.
    Arrived(Vec<Row>),
    /// A batch ended, well or not.
    Finished(BatchId),
    /// The engine took none of a batch's rows because it is full: they wait again, each in its place.
    Full(BatchId),
    /// These outputs need no prior any more: those of them that wait do not run.
    Withdrawn(Vec<OutputId>),
    /// An engine takes no rows from now on. What runs there is still to be finished.
    Down {
        /// Its place in [`Limits::slots`].
        engine: usize,
    },
    /// An engine takes rows again.
    Up {
        /// Its place in [`Limits::slots`].
        engine: usize,
    },
    /// How many rows may start from now on, for the room at the denoise stage. Without any nothing starts, and what runs
    /// goes on. A batch starts whole if any of its rows may: half of one costs as much.
    Room(usize),
    /// The instant of the latest [`Action::WakeAt`] has come.
    Woken,
}

/// What to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Run these rows in one call. There is at least one.
    Run {
        /// To be named when it ends.
        batch: BatchId,
        /// Its place in [`Limits::slots`].
        engine: usize,
        /// Of one size under [`Policy::Batched`], a single one under [`Policy::Continuous`].
        rows: Vec<Row>,
    },
    /// Send [`Event::Woken`] at this instant. Replaces an earlier wish; an event that is answered without one takes
    /// the wish back.
    WakeAt(Instant),
}

/// A batch on an engine.
#[derive(Debug)]
struct Running {
    engine: usize,
    /// How many rows it was given.
    slots: usize,
    /// One of them is a suspect.
    suspect: bool,
    /// Those of them that somebody still needs, with the time since when they wait here.
    rows: Vec<Waiting>,
}

/// Decides who runs. Deterministic: the same events give the same actions.
#[derive(Debug)]
pub struct BatchFormer {
    policy: Policy,
    waiting_max: usize,
    slots: Slots,
    /// In no order: a row's turn depends on the time. At most `waiting_max` of a class, one request's rows more, and
    /// those that came back from an engine.
    waiting: Vec<Waiting>,
    running: BTreeMap<BatchId, Running>,
    room: usize,
    batches: u64,
}

impl BatchFormer {
    /// With nothing waiting and room at the next stage.
    pub fn new(limits: Limits) -> Self {
        let Limits {
            policy,
            slots,
            waiting_max,
        } = limits;
        Self {
            policy,
            waiting_max: waiting_max.max(1),
            slots: Slots::new(&slots),
            waiting: Vec::new(),
            running: BTreeMap::new(),
            room: usize::MAX,
            batches: 0,
        }
    }

    /// How many more rows of `class` should be taken from the queue. Work beyond that waits in the queue, where any
    /// other batcher may take it.
    pub fn wanted(&self, class: PriorityClass) -> usize {
        let waiting = self.waiting.iter();
        let waiting = waiting.filter(|waiting| waiting.row.class == class).count();
        self.waiting_max.saturating_sub(waiting)
    }

    /// Rows that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Takes an event at `now`, says what to do.
    pub fn apply(&mut self, event: Event, now: Instant) -> Vec<Action> {
        match event {
            Event::Arrived(rows) => {
                let rows = rows.into_iter().map(|row| Waiting { row, since: now });
                self.waiting.extend(rows);
            }
            Event::Finished(batch) => {
                if let Some(ended) = self.running.remove(&batch) {
                    self.slots.finished(ended.engine, ended.slots);
                }
            }
            Event::Full(batch) => {
                if let Some(refused) = self.running.remove(&batch) {
                    self.slots.full(refused.engine, refused.slots, now);
                    self.waiting.extend(refused.rows);
                }
            }
            Event::Withdrawn(outputs) => self.withdraw(&outputs),
            Event::Down { engine } => self.slots.down(engine),
            Event::Up { engine } => self.slots.up(engine),
            Event::Room(room) => self.room = room,
            Event::Woken => {}
        }
        self.actions(now)
    }

    /// A row that runs is forgotten too: an engine that says "full" must not bring it back.
    fn withdraw(&mut self, outputs: &[OutputId]) {
        let stays = |waiting: &Waiting| !outputs.contains(&waiting.row.output);
        self.waiting.retain(stays);
        for running in self.running.values_mut() {
            running.rows.retain(stays);
        }
    }

    fn actions(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        while self.room > 0 && !self.waiting.is_empty() {
            match self.next(now) {
                Ok((engine, next)) => actions.push(self.run(engine, &next)),
                Err(later) => {
                    let rested_at = self.slots.rested_at(now);
                    let wake_at = [later, rested_at].into_iter().flatten().min();
                    actions.extend(wake_at.map(Action::WakeAt));
                    break;
                }
            }
        }
        actions
    }

    /// The engine and the places of the rows that run next; or when to look again, if a time for that is known.
    fn next(&self, now: Instant) -> Result<(usize, Vec<usize>), Option<Instant>> {
        let mut later = None;
        for (engine, slots) in self.slots.free(self.policy, now) {
            let mut there = self.running.values();
            let place = Place {
                slots,
                suspect: there.any(|running| running.engine == engine && running.suspect),
            };
            match self.policy.next(&self.waiting, place, now) {
                Next::Run(next) => return Ok((engine, next)),
                Next::At(at) => later = later.into_iter().chain([at]).min(),
                Next::Nothing => {}
            }
        }
        Err(later)
    }

    /// Takes the rows at the places `next` of what waits, in that order.
    fn run(&mut self, engine: usize, next: &[usize]) -> Action {
        self.batches += 1;
        let batch = BatchId(self.batches);
        let rows: Vec<Waiting> = next.iter().map(|&place| self.waiting[place]).collect();
        let mut place = 0..;
        self.waiting
            .retain(|_| !place.next().is_some_and(|place| next.contains(&place)));
        self.slots.started(engine, rows.len());
        self.room = self.room.saturating_sub(rows.len());
        let action = Action::Run {
            batch,
            engine,
            rows: rows.iter().map(|waiting| waiting.row).collect(),
        };
        let running = Running {
            engine,
            slots: rows.len(),
            suspect: rows.iter().any(|waiting| waiting.row.alone),
            rows,
        };
        self.running.insert(batch, running);
        action
    }
}

#[cfg(test)]
#[path = "former_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "former_properties.rs"]
mod properties;
