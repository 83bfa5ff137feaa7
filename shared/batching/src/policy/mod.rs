//! Who is next, of the rows that wait.
//!
//! Both policies agree on what must not happen: that a row starves. A row is raised by one class for each [`AGING`]
//! it has waited, without end, and the class comes first. So nothing overtakes a row that has waited `AGING` longer
//! and is of the same class, or three times that and is of any. Suspects are the exception: one may have to wait for
//! another one to be done.

mod batched;
mod continuous;

use std::{
    cmp::Reverse,
    time::{Duration, Instant},
};

use protocol::PriorityClass;

use crate::former::Row;

/// Waiting this long is worth one class. About one full call of the published AR stage (33 s with 32 rows): a class
/// saves its rows one turn of everybody else's, and no more.
pub const AGING: Duration = Duration::from_secs(30);

/// How rows are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Each row is a call of its own, and goes as soon as a slot of some engine is free, in any mix of sizes: for
    /// engines that let rows join and leave while others run.
    Continuous,
    /// Rows of one size go together, and one batch at a time to each engine: for engines that decode equal lengths
    /// together, and the baseline that everything else is measured against.
    Batched {
        /// How long the first row waits for company while an engine is idle.
        delay: Duration,
    },
}

/// A row and since when it waits here.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) row: Row,
    pub(crate) since: Instant,
}

/// An engine with room.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Rows that it takes.
    pub(crate) slots: usize,
    /// A suspect runs there.
    pub(crate) suspect: bool,
}

/// What to run on an engine with room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The rows at these places of what waits, the first to go first. At least one.
    Run(Vec<usize>),
    /// Nothing yet.
    At(Instant),
    /// Nothing that waits may run there now.
    Nothing,
}

impl Policy {
    /// What of `waiting`, which is not empty, runs at `place`.
    pub(crate) fn next(self, waiting: &[Waiting], place: Place, now: Instant) -> Next {
        match self {
            Self::Continuous => continuous::next(waiting, place, now),
            Self::Batched { delay } => batched::next(waiting, place.slots, delay, now),
        }
    }
}

/// What a row's class is worth at `now`: less goes first.
fn effective_class(row: &Row, now: Instant) -> Reverse<u128> {
    let below = match row.class {
        PriorityClass::High => 0,
        PriorityClass::Standard => 1,
        PriorityClass::Low => 2,
    };
    // Counted upwards from the lowest class, since a row may rise above the highest.
    let raised = now.saturating_duration_since(row.arrived).as_nanos() / AGING.as_nanos();
    Reverse(2 - below + raised)
}
