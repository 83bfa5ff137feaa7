//! Scripted faults of the fake SRT server: which rows, by their seeds, and how often.

use serde::{Deserialize, Serialize};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The row has fewer ids than it says.
    ShortIds,
    /// An id of the large grid is beyond the codebook.
    IdsOutOfRange,
    /// The row ends where an end token was drawn, as without `ignore_eos`.
    EarlyEos,
    /// The row's `meta_info` has no counts.
    MissingUsage,
    /// The row was aborted by the server itself.
    Abort,
    /// The answer has one entry too few.
    WrongLength,
    /// HTTP 400.
    BadRequest,
    /// HTTP 500.
    ServerError,
    /// HTTP 502, as from a proxy that has lost sight of the row: it runs on.
    BadGateway,
    /// HTTP 503, as with a full queue.
    Full,
    /// No answer, for as long as the client waits.
    Hang,
    /// An answer that stops after its first bytes.
    StalledBody,
    /// A right answer, late.
    Slow,
    /// The connection closes without an answer.
    Reset,
}

impl Fault {
    /// Whether it is the whole call's, whichever row has it.
    pub(crate) fn is_calls(self) -> bool {
        match self {
            Self::ShortIds
            | Self::IdsOutOfRange
            | Self::EarlyEos
            | Self::MissingUsage
            | Self::Abort => false,
            Self::WrongLength
            | Self::BadRequest
            | Self::ServerError
            | Self::BadGateway
            | Self::Full
            | Self::Hang
            | Self::StalledBody
            | Self::Slow
            | Self::Reset => true,
        }
    }
}

/// One line of the script.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// `sampling_seed` of the rows that it hits; every row's when absent.
    #[serde(default)]
    pub seed: Option<u64>,
    /// How often; always when absent.
    #[serde(default)]
    pub times: Option<u32>,
    /// What happens.
    pub fault: Fault,
}

impl Rule {
    /// For each call with a row of this seed.
    pub fn always(seed: u64, fault: Fault) -> Self {
        Self {
            seed: Some(seed),
            times: None,
            fault,
        }
    }

    /// For the first call with a row of this seed.
    pub fn once(seed: u64, fault: Fault) -> Self {
        Self {
            times: Some(1),
            ..Self::always(seed, fault)
        }
    }
}

/// Rules; the first one that applies wins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Script(pub Vec<Rule>);

impl Script {
    /// What happens to a row of this seed now. A rule for so many times is used up by it.
    pub(crate) fn hit(&mut self, seed: u64) -> Option<Fault> {
        let applies = |rule: &&mut Rule| {
            rule.seed.is_none_or(|wanted| wanted == seed) && rule.times != Some(0)
        };
        let rule = self.0.iter_mut().find(applies)?;
        if let Some(times) = &mut rule.times {
            *times -= 1;
        }
        Some(rule.fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_hits_its_seed_as_often_as_it_says() {
        let script =
            r#"[{"seed": 7, "times": 1, "fault": "reset"}, {"seed": 8, "fault": "server_error"}]"#;
        let mut script: Script = serde_json::from_str(script).expect("a script");
        assert_eq!(script.hit(9), None);
        assert_eq!([script.hit(7), script.hit(7)], [Some(Fault::Reset), None]);
        assert_eq!([script.hit(8); 1], [Some(Fault::ServerError)]);
        assert_eq!(script.hit(8), Some(Fault::ServerError));
        let mut every = Script(vec![Rule {
            seed: None,
            times: None,
            fault: Fault::Full,
        }]);
        assert_eq!(every.hit(1), Some(Fault::Full));
    }
}
