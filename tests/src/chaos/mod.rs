//! The chaos harness: real processes and a real broker (or three), thousands of requests, a seeded script that kills,
//! freezes and ends whatever there is, and at the end an audit of what clients were told and what is stored.
//!
//! The claim that it tries to break: every accepted job ends exactly once, in a result or a typed error, and its
//! client can always find out.
//!
//! | module   | does                                                          |
//! |----------|---------------------------------------------------------------|
//! | `plan`   | which fault strikes what, and when: pure                      |
//! | `order`  | what clients ask for and what they may get: pure              |
//! | `crew`   | the processes and brokers, struck and brought back            |
//! | `client` | a careful client: one key a request, until it has an answer   |
//! | `ledger` | what clients were told                                        |
//! | `stored` | what the broker has, read past our own code                   |
//! | `audit`  | ledger against broker: pure                                   |
//! | `pauses` | how long nothing was accepted or finished after an event: pure |
//! | `report` | the figures of a run                                          |
//! | `run`    | all of it, in order                                           |

pub mod audit;
pub mod client;
pub mod crew;
pub mod ledger;
pub mod order;
pub mod pauses;
pub mod plan;
pub mod report;
mod run;
pub mod stored;

pub use audit::violations;
pub use client::Clients;
pub use ledger::Entry;
pub use order::{Kinds, Mix};
pub use report::Report;
pub use run::{Config, Logs, Servers, quiet, run};
