//! The flags of a fleet's workers that say which engine they have, and the files that those name.

use std::{fs, path::Path};

use replay::{Rule, Rules};

use super::Engine;
use crate::tiny_model;

/// The script of a fleet's replay engines.
const FAULTS: &str = "faults.json";

/// Whole or not at all: a worker may read at any moment.
pub(super) fn write_faults(folder: &Path, rules: &[Rule]) {
    let fresh = folder.join("faults.part");
    let text = serde_json::to_vec(&Rules(rules.to_vec())).expect("rules are JSON");
    fs::write(&fresh, text).expect("the folder is ours");
    fs::rename(fresh, folder.join(FAULTS)).expect("the folder is ours");
}

/// A worker's flags for its engine; writes the table that they name.
pub(super) fn engine_flags(engine: &Engine, folder: &Path) -> Vec<String> {
    let text = |path: &Path| path.to_str().expect("paths of tests are text").to_owned();
    match engine {
        Engine::Model(folder) => vec!["--model".to_owned(), text(folder)],
        Engine::Replay(table) | Engine::Srt { table, .. } => {
            let times = folder.join("times.json");
            let table = serde_json::to_vec(table).expect("a table is JSON");
            fs::write(&times, table).expect("the folder is ours");
            let faults = text(&folder.join(FAULTS));
            let flags = ["--engine", "replay", "--times", &text(&times), "--faults"];
            flags
                .map(str::to_owned)
                .into_iter()
                .chain([faults])
                .collect()
        }
    }
}

/// The AR-batcher's flags, where its engine is another one than the denoisers'.
pub(super) fn ar_engine_flags(engine: &Engine) -> Option<Vec<String>> {
    let Engine::Srt { urls, .. } = engine else {
        return None;
    };
    let (urls, model) = (urls.join(","), tiny_model());
    let model = model.to_str().expect("paths of tests are text");
    let own = ["--engine", "srt", "--srt-url", &urls, "--model", model];
    Some(own.map(str::to_owned).to_vec())
}
