//! Compiles the shim against the headers of the libtorch that torch-sys links, and gives the
//! binaries of this package an rpath to it. Dependents cannot inherit a link argument: they read
//! `DEP_FRESCO_MODEL_LIBTORCH_LIB` in a build.rs of their own.

use std::env;
use std::path::{Path, PathBuf};

#[expect(
    clippy::disallowed_methods,
    reason = "a build script is told by the environment"
)]
fn main() {
    const SHIM: [&str; 2] = ["src/shim.cpp", "src/probe.cpp"];
    for file in SHIM.iter().chain(&["src/shim.h"]) {
        println!("cargo::rerun-if-changed={file}");
    }
    println!("cargo::rerun-if-env-changed=LIBTORCH_INCLUDE");
    let lib = env::var_os("DEP_TCH_LIBTORCH_LIB").expect("torch-sys tells where libtorch is");
    let lib = std::path::absolute(lib).expect("the folder of libtorch is a path");
    let root = match env::var_os("LIBTORCH_INCLUDE") {
        Some(root) => PathBuf::from(root),
        None => lib
            .parent()
            .map(Path::to_owned)
            .expect("lib lies in the folder of libtorch"),
    };
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        // The headers are not ours to mend.
        .warnings(false)
        .include(root.join("include"))
        .include(root.join("include/torch/csrc/api/include"))
        .files(SHIM)
        .compile("fresco_shim");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{}", lib.display());
    println!("cargo::metadata=libtorch_lib={}", lib.display());
}
