//! Gives the binary an rpath to the libtorch that `model` links, so that it runs without
//! LD_LIBRARY_PATH. A link argument reaches only the package whose build.rs prints it.

use std::env;

#[expect(
    clippy::disallowed_methods,
    reason = "a build script is told by the environment"
)]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let lib = env::var("DEP_FRESCO_MODEL_LIBTORCH_LIB").expect("model tells where libtorch is");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{lib}");
}
