//! `docs/deploy.md`: the script of what is to fail in a replay.

use replay::{Fault, FaultStage, Rules};
use serde::de::DeserializeOwned;

use crate::blocks::Document;

/// What a value of `T` may be, as serde says it of a value that is none.
fn variants<T: DeserializeOwned + std::fmt::Debug>() -> Vec<String> {
    let refused = serde_json::from_str::<T>("\"\"").unwrap_err().to_string();
    let (_, known) = refused.split_once("expected").unwrap();
    let known = known.split('`').skip(1).step_by(2);
    known.map(str::to_owned).collect()
}

#[test]
fn the_script_of_failures_can_be_read_and_every_stage_and_fault_is_told() {
    let page = Document::read("docs/deploy.md");
    let is_script = |text: &str| text.contains("prompt_contains");
    let scripts: Vec<_> = page
        .blocks
        .iter()
        .filter(|it| is_script(&it.text))
        .collect();
    assert_eq!(scripts.len(), 1);
    let script: Rules = serde_json::from_str(&scripts[0].text).unwrap();
    assert!(script.fault(FaultStage::Denoise, "poison").is_some());
    let told: Vec<_> = page.spans().collect();
    let (stages, faults) = (variants::<FaultStage>(), variants::<Fault>());
    assert!(
        stages.len() >= 2 && faults.len() >= 4,
        "{stages:?} {faults:?}"
    );
    for name in stages.iter().chain(&faults) {
        assert!(told.contains(&name.as_str()), "{name} is not told");
    }
}
