//! One row a call, whenever a slot is free.
//!
//! Order: effective class, then the earliest deadline, then the oldest, then the output's id. Sizes do not count: an
//! engine that decodes continuously takes any mix, so that a rare size waits no longer than a common one.
//!
//! A call of one row has no companions that could fail with it. But a row that takes its engine down takes every call
//! there with it, and all of them are suspects from then on ([`Row::alone`](crate::Row)). Running each on an engine
//! that was drained first would cost everybody a whole row's time, for each retry. So only suspects are kept from each
//! other: one on an engine at a time. Then nobody goes down with the same bad row over and over.

use std::time::Instant;

use super::{Next, Place, Waiting, effective_class};

/// The row to run at `place`.
pub(super) fn next(waiting: &[Waiting], place: Place, now: Instant) -> Next {
    let turn = |(_, Waiting { row, .. }): &(usize, &Waiting)| {
        (
            effective_class(row, now),
            row.deadline,
            row.arrived,
            row.output,
        )
    };
    let may_run = |(_, Waiting { row, .. }): &(usize, &Waiting)| !(place.suspect && row.alone);
    let first = waiting.iter().enumerate().filter(may_run).min_by_key(turn);
    first.map_or(Next::Nothing, |(place, _)| Next::Run(vec![place]))
}
