//! Rows of one size, one batch at a time.
//!
//! The rule: the oldest waiting row decides the size; rows of that size join it, oldest first, up to the engine's
//! slots. The batch starts when it is full or when its oldest row has waited `delay`. Whatever waits while a batch
//! runs forms the next one without further delay. That is the peer's rule; classes come on top of it and change
//! nothing where all rows have the same.
//!
//! A row that took a worker down before, or failed, runs alone: a bad one costs its companions one batch, not their
//! attempts.
//!
//! Oldest first over all sizes keeps a rare size from starving; the price is that a frequent size may wait for a
//! batch of one. Letting full batches overtake would be faster on average and unbounded in the worst case.

use std::time::{Duration, Instant};

use super::{Next, Waiting, effective_class};

/// The rows to run on an idle engine with `slots`.
pub(super) fn next(waiting: &[Waiting], slots: usize, delay: Duration, now: Instant) -> Next {
    let mut places: Vec<usize> = (0..waiting.len()).collect();
    places.sort_by_key(|&place| {
        let row = &waiting[place].row;
        (effective_class(row, now), row.arrived, row.output)
    });
    let Some(&first) = places.first() else {
        return Next::Nothing;
    };
    let base = waiting[first];
    if base.row.alone {
        return Next::Run(vec![first]);
    }
    places.retain(|&place| {
        let row = &waiting[place].row;
        row.size == base.row.size && !row.alone
    });
    let starts_at = base.since + delay;
    if places.len() < slots && now < starts_at {
        return Next::At(starts_at);
    }
    places.truncate(slots);
    Next::Run(places)
}
