//! Two tenants of a deployment, and the file that names them.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// A client with a key of its own.
#[derive(Debug, Clone, Copy)]
pub struct TestTenant {
    /// As the file has it.
    pub name: &'static str,
    /// What it brings.
    pub key: &'static str,
    authorization: &'static str,
    key_sha256: &'static str,
}

/// One.
pub const STUDIO: TestTenant = TestTenant {
    name: "studio",
    key: "sk-studio",
    authorization: "Bearer sk-studio",
    key_sha256: "d44337f571881d1b64786d8843d8286d8c75ccf098c6e4eddc64dd9982978bec",
};

/// Another.
pub const PRESS: TestTenant = TestTenant {
    name: "press",
    key: "sk-press",
    authorization: "Bearer sk-press",
    key_sha256: "76c9286280bdda1160bb8b70e407ea5ae2a39d59f94949b867238cc84f26c5d7",
};

impl TestTenant {
    /// The key as a request brings it.
    pub const fn header(&self) -> (&'static str, &'static str) {
        ("authorization", self.authorization)
    }
}

/// A file in `folder` for `--tenants`.
pub fn tenants_file(folder: &Path) -> PathBuf {
    let entry = |tenant: TestTenant| {
        let TestTenant {
            name, key_sha256, ..
        } = tenant;
        format!("[[tenant]]\nname = \"{name}\"\nkey_sha256 = \"{key_sha256}\"\n")
    };
    let file = folder.join("tenants.toml");
    fs::write(&file, [STUDIO, PRESS].map(entry).concat()).expect("the folder is ours");
    file
}
