//! The harness of the end-to-end tests: a real nats-server, the real binaries, the tiny checkpoint. Nothing here
//! stands in for a part of the product.

pub mod api;
#[path = "../../shared/messaging/tests/common/mod.rs"]
pub mod broker;
pub mod fleet;
pub mod http;
pub mod process;

use std::path::PathBuf;

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

/// A built binary of the profile that the tests were built in.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let profile = test
        .parent()
        .and_then(|deps| deps.parent())
        .expect("tests lie in <profile>/deps");
    let binary = profile.join(name);
    assert!(
        binary.exists(),
        "{} is not built: run `make test`, or `cargo build --workspace --bins` first",
        binary.display()
    );
    binary
}
