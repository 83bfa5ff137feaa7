//! `docker/` without an engine: the Dockerfile, the compose files and what they mount agree with each other and with the
//! programs. `docker/try.sh` runs them.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

mod addresses;
mod files;
mod images;
mod limits;
mod programs;
