//! Scripted failures: which prompts fail at which stage, and how.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::ReplayError;

/// How a job fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The process ends at once, as by a crash of a native library.
    Abort,
    /// The device thread panics.
    Panic,
    /// The engine says that it failed.
    Fail,
    /// The device call never comes back and hears no stop.
    Hang,
}

impl Fault {
    /// Does what the fault says, on the thread that calls: the device's. Returns for [`Fault::Fail`] only, which is
    /// its engine's to tell.
    ///
    /// # Panics
    ///
    /// For [`Fault::Panic`].
    pub fn enact(self) {
        match self {
            Self::Abort => std::process::abort(),
            Self::Panic => panic!("scripted panic of the replay engine"),
            // Parking may end without a reason.
            Self::Hang => loop {
                std::thread::park();
            },
            Self::Fail => {}
        }
    }
}

/// Where a rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultStage {
    /// The AR engine.
    Prior,
    /// The denoiser.
    Denoise,
}

/// One line of the script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// A part of the prompt; the empty text is part of every prompt, also of a self-test's empty one.
    pub prompt_contains: String,
    /// At which stage.
    pub stage: FaultStage,
    /// How.
    pub fault: Fault,
}

/// A script: the first rule that applies wins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Rules(pub Vec<Rule>);

impl Rules {
    /// What happens to a job of this prompt at this stage.
    pub fn fault(&self, stage: FaultStage, prompt: &str) -> Option<Fault> {
        let applies =
            |rule: &&Rule| rule.stage == stage && prompt.contains(rule.prompt_contains.as_str());
        self.0.iter().find(applies).map(|rule| rule.fault)
    }
}

/// Where the script is, if there is one. It is read at every job, so that a test can mend what it broke while the
/// fleet runs; whoever changes it renames a whole file into its place.
#[derive(Debug, Clone, Default)]
pub struct Faults {
    file: Option<PathBuf>,
}

impl Faults {
    /// Refuses a script that cannot be read now: better told at the start than by the first job.
    pub fn open(file: Option<&Path>) -> Result<Self, ReplayError> {
        let faults = Self {
            file: file.map(Path::to_owned),
        };
        faults.rules()?;
        Ok(faults)
    }

    /// The rules of this moment; none when the file is missing.
    pub fn rules(&self) -> Result<Rules, ReplayError> {
        let Some(file) = &self.file else {
            return Ok(Rules::default());
        };
        match std::fs::read(file) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|source| ReplayError::Json {
                file: file.clone(),
                source,
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Rules::default()),
            Err(source) => Err(ReplayError::Io {
                file: file.clone(),
                source,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(text: &str) -> Rules {
        serde_json::from_str(text).expect("rules")
    }

    #[test]
    fn the_first_rule_that_applies_wins() {
        let rules = rules(
            r#"[{"prompt_contains": "poison", "stage": "denoise", "fault": "abort"},
                {"prompt_contains": "poison", "stage": "prior", "fault": "hang"},
                {"prompt_contains": "son", "stage": "denoise", "fault": "panic"},
                {"prompt_contains": "late", "stage": "denoise", "fault": "fail"}]"#,
        );
        use {Fault::*, FaultStage::*};
        for (stage, prompt, expected) in [
            (Denoise, "a poison", Some(Abort)),
            (Prior, "a poison", Some(Hang)),
            (Denoise, "a song, late", Some(Panic)),
            (Denoise, "too late", Some(Fail)),
            (Prior, "too late", None),
            (Denoise, "POISON", None),
            (Denoise, "", None),
        ] {
            assert_eq!(rules.fault(stage, prompt), expected, "{stage:?} {prompt}");
        }
    }

    #[test]
    fn an_empty_text_is_part_of_every_prompt() {
        let rules = rules(r#"[{"prompt_contains": "", "stage": "denoise", "fault": "fail"}]"#);
        for prompt in ["", "a red fox"] {
            let found = rules.fault(FaultStage::Denoise, prompt);
            assert_eq!(found, Some(Fault::Fail), "{prompt}");
        }
    }

    #[test]
    fn a_changed_file_counts_at_the_next_job() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("faults.json");
        let faults = Faults::open(Some(&file)).expect("a missing file is no fault");
        assert_eq!(faults.rules().expect("missing"), Rules::default());
        let rule = Rule {
            prompt_contains: "x".into(),
            stage: FaultStage::Prior,
            fault: Fault::Fail,
        };
        let written = Rules(vec![rule]);
        let text = serde_json::to_string(&written).expect("rules are JSON");
        std::fs::write(&file, text).expect("a writable folder");
        assert_eq!(faults.rules().expect("written"), written);
        std::fs::remove_file(&file).expect("it is ours");
        assert_eq!(faults.rules().expect("removed"), Rules::default());
    }

    #[test]
    fn no_file_is_no_fault() {
        let faults = Faults::open(None).expect("nothing to read");
        assert_eq!(faults.rules().expect("nothing to read"), Rules::default());
    }

    #[test]
    fn a_script_that_cannot_be_read_is_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("faults.json");
        for text in [
            "",
            "{}",
            r#"[{"stage": "prior", "fault": "fail"}]"#,
            r#"[{"prompt_contains": "", "stage": "decode", "fault": "fail"}]"#,
            r#"[{"prompt_contains": "", "stage": "prior", "fault": "sleep"}]"#,
            r#"[{"prompt_contains": "", "stage": "prior", "fault": "fail", "times": 1}]"#,
        ] {
            std::fs::write(&file, text).expect("a writable folder");
            let refused = Faults::open(Some(&file));
            assert!(matches!(refused, Err(ReplayError::Json { .. })), "{text}");
        }
        let refused = Faults::open(Some(folder.path()));
        assert!(matches!(refused, Err(ReplayError::Io { .. })));
    }

    #[test]
    #[should_panic(expected = "scripted")]
    fn a_scripted_panic_is_a_panic() {
        Fault::Panic.enact();
    }
}
