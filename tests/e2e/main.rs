//! End to end: real broker, real processes, real (tiny) model or its replay. One module per behaviour.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

mod bad_requests;
mod bench;
mod cancel;
mod chaos;
mod check_model;
mod cluster;
mod console;
mod deadline;
mod demo;
mod fence;
mod fleet_file;
mod flood;
mod idempotency;
mod last_spans;
mod life;
mod log_filter;
mod observe;
mod open_files;
mod partition;
mod peer_faults;
mod picture;
mod prior_cache;
mod profile;
mod queries;
mod replay;
mod rolling;
mod secured;
mod srt;
mod stages;
mod tenants;
mod traces;
mod up;
mod worker_loss;
