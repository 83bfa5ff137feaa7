//! One row a call, whenever a slot is free.
//!
//! Order: effective class, then the earliest deadline, then the oldest, then the output's id. Sizes do not count: an
//! engine that decodes continuously takes any mix, so that a rare size waits no longer than a common one.
//!
//! [`Row::alone`](crate::Row) has nothing to say here. It keeps a suspect row's companions from failing with it, and
//! a call of one row has none; an engine that dies as a whole under a row takes all its calls down, and keeping the
//! others away from it would mean to drain it first, for each retry.

use std::time::Instant;

use super::{Waiting, effective_class};

/// The place of the row to run.
pub(super) fn next(waiting: &[Waiting], now: Instant) -> Vec<usize> {
    let turn = |(_, Waiting { row, .. }): &(usize, &Waiting)| {
        (
            effective_class(row, now),
            row.deadline,
            row.arrived,
            row.output,
        )
    };
    let first = waiting.iter().enumerate().min_by_key(turn);
    first.map(|(place, _)| place).into_iter().collect()
}
