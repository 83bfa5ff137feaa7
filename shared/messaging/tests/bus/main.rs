//! The bus against a real nats-server: every test has its own.

#[path = "../common/mod.rs"]
mod common;

#[path = "../common/secured.rs"]
mod secured;

mod between;
mod certificates;
mod change;
mod inspect;
mod lives;
mod measures;
mod presence;
mod priors;
mod provision;
mod publish;
mod queue;
mod queues;
mod results;
mod roles;
mod site;
mod system;
mod trace;
