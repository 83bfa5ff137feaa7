//! Who runs together in the AR stage, as a pure rule: events in, actions out, the time an argument.
//!
//! | module      | decides                                                                 |
//! |-------------|-------------------------------------------------------------------------|
//! | `former`    | which rows run now, on which engine: [`BatchFormer`]                    |
//! | `policy`    | which of the waiting rows are next: `continuous` and `batched`          |
//! | `slots`     | which engine has room, and how much an engine that says "full" gets     |
//! | `backlog`   | how far the AR stage runs ahead of the denoisers: [`Backlog`]           |
//! | `admission` | who is let in at the gateway                                            |
//! | `retry`     | who tries again, and when nobody is to: [`may_start`]                   |
//! | `breaker`   | when a worker stops trusting its engine: [`Breaker`]                    |

#![deny(missing_docs)]

pub mod admission;
mod backlog;
mod breaker;
mod former;
mod pace;
mod policy;
mod retry;
mod slots;

pub use backlog::{AHEAD_PER_DENOISER_MAX, Backlog, Ends, Look, Mark};
pub use breaker::{Breaker, self_test_pauses};
pub use former::{Action, BatchFormer, BatchId, Event, Limits, Row};
pub use policy::{AGING, Policy};
pub use retry::{Others, Redelivery, Start, is_retried, is_tried, may_start};
pub use slots::FULL_PAUSE;
