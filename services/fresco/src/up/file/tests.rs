//! What a fleet file may say, and what it makes of it.

mod keys;
mod layout;
mod mistakes;
mod servers;

use super::*;

fn args() -> UpArgs {
    UpArgs::of_fleet(Path::new("f")).expect("flags of ours")
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A file that is right, to make wrong.
const RIGHT: &str = r#"
engine = "replay"
times = "../times/ascend.json"
[gateway]
listen = "127.0.0.1:8080"
[ar]
devices = [0, 1]
[denoisers]
devices = [2, 3]
"#;
