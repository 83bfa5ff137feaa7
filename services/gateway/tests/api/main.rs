//! The gateway over HTTP against a real nats-server. The workers are written here, behind the bus: that is the seam.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

mod admission;
#[path = "../../../../shared/messaging/tests/common/mod.rs"]
mod broker;
mod cancel;
mod deployment;
mod disconnect;
mod idempotency;
mod images;
mod jobs;
mod life;
mod requests;
mod tenants;
mod timeout;
mod variations;
mod workers;
