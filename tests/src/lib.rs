//! The harness of the end-to-end tests: a real nats-server, the real binaries, the tiny checkpoint. Nothing here
//! stands in for a part of the product.

pub mod api;
#[path = "../../shared/messaging/tests/common/mod.rs"]
pub mod broker;
pub mod brokers;
pub mod chaos;
pub mod cluster;
pub mod dashboards;
pub mod exposition;
pub mod failover;
pub mod fleet;
pub mod hosts;
pub mod http;
pub mod judge;
mod node;
pub mod otlp;
pub mod pictures;
pub mod process;
pub mod prometheus;
pub mod queries;
pub mod recipe;
pub mod scenario;
#[path = "../../shared/messaging/tests/common/secured.rs"]
pub mod secured;
pub mod srt;
pub mod tempo;
pub mod tenants;

// As the harness is called where it lies.
use broker as common;

use std::path::PathBuf;

pub use broker::free_port;

/// The root of the repository.
pub fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent()
        .expect("tests/ lies in the repository")
        .to_owned()
}

/// The tiny checkpoint.
pub fn tiny_model() -> PathBuf {
    root().join("tests/data/tiny")
}

/// How many prior tokens the tiny checkpoint knows.
pub const TINY_CODEBOOK_SIZE: u32 = 512;

/// The checkpoint that draws what a prompt says.
pub fn demo_model() -> PathBuf {
    root().join("assets/fresco-demo")
}

/// A built binary of the profile that the tests were built in.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    // Tests lie in <profile>/deps, programs of ours in <profile>.
    let profile = test
        .ancestors()
        .skip(1)
        .find(|folder| !folder.ends_with("deps"))
        .expect("a program lies in a folder");
    let binary = profile.join(name);
    assert!(
        binary.exists(),
        "{} is not built: run `make test`, or `cargo build --workspace --bins` first",
        binary.display()
    );
    binary
}
