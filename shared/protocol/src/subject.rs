//! Subjects: built and read here only.
//!
//! ```text
//! <prefix>.ar.<class>.<job>            one request, to the AR stage
//! <prefix>.dn.<class>.<job>.<index>    one output, to a denoiser
//! <prefix>.res.<job>.<index>           one result; the stream keeps one message per subject
//! <prefix>.done.<job>.<index>          the server's notice of it, headers only
//! <prefix>.prog.<job>.<index>          progress, not stored
//! <prefix>.dead.<job>.<index>          one dead letter
//! ```

use std::{fmt, str::FromStr};

use crate::{JobId, OutputId, PriorityClass};

/// A text that is no subject or prefix of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// Not 1 to 32 of `a-z`, `0-9`, `-`.
    #[error("prefix is not 1 to 32 of a-z, 0-9 and -")]
    Prefix,
    /// Not one of the shapes above.
    #[error("subject is not one of fresco's")]
    Subject,
}

/// The name of a deployment: the first token of its subjects and the start of its stream and bucket names, so that
/// several deployments (and every test) can share one broker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Prefix(String);

impl Prefix {
    /// The text of `subject` in this deployment.
    pub fn subject(&self, subject: &Subject) -> String {
        format!("{}.{subject}", self.0)
    }

    /// The subject that `text` is in this deployment.
    pub fn parse(&self, text: &str) -> Result<Subject, SubjectError> {
        let rest = text
            .strip_prefix(self.0.as_str())
            .and_then(|rest| rest.strip_prefix('.'));
        rest.ok_or(SubjectError::Subject)?.parse()
    }

    /// The pattern of all subjects of `family`.
    pub(crate) fn all(&self, family: &str) -> String {
        format!("{}.{family}.>", self.0)
    }

    /// The name of a stream or bucket.
    pub(crate) fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.0)
    }

    /// The pattern of every progress message.
    pub fn progress_pattern(&self) -> String {
        self.all(PROGRESS)
    }

    /// The pattern of every message that the AR queue has of `job`.
    pub fn ar_pattern(&self, job: JobId) -> String {
        format!("{}.{AR}.*.{job}", self.0)
    }

    /// The pattern of every message that the denoise queue has of `job`.
    pub fn denoise_pattern(&self, job: JobId) -> String {
        format!("{}.{DENOISE}.*.{job}.>", self.0)
    }

    /// The pattern of every result of `job`.
    pub fn result_pattern(&self, job: JobId) -> String {
        format!("{}.{RESULT}.{job}.>", self.0)
    }

    /// The pattern of every dead letter.
    pub fn dead_pattern(&self) -> String {
        self.all(DEAD)
    }

    /// The pattern of every notice of a stored result.
    pub fn done_pattern(&self) -> String {
        self.all(DONE)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Prefix {
    type Err = SubjectError;
    fn from_str(text: &str) -> Result<Self, SubjectError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if text.is_empty() || text.len() > 32 || !text.bytes().all(allowed) {
            return Err(SubjectError::Prefix);
        }
        Ok(Self(text.to_owned()))
    }
}

pub(crate) const AR: &str = "ar";
pub(crate) const DENOISE: &str = "dn";
pub(crate) const RESULT: &str = "res";
pub(crate) const DONE: &str = "done";
pub(crate) const DEAD: &str = "dead";
const PROGRESS: &str = "prog";

/// Where a message goes, without the deployment's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A request to the AR stage.
    Ar(PriorityClass, JobId),
    /// An output to a denoiser.
    Denoise(PriorityClass, OutputId),
    /// An output's result.
    Result(OutputId),
    /// The notice that a result is stored.
    Done(OutputId),
    /// An output's progress.
    Progress(OutputId),
    /// An output's dead letter.
    Dead(OutputId),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ar(class, job) => write!(f, "{AR}.{class}.{job}"),
            Self::Denoise(class, output) => {
                write!(f, "{DENOISE}.{class}.{}.{}", output.job, output.index)
            }
            Self::Result(output) => write!(f, "{RESULT}.{}.{}", output.job, output.index),
            Self::Done(output) => write!(f, "{DONE}.{}.{}", output.job, output.index),
            Self::Progress(output) => write!(f, "{PROGRESS}.{}.{}", output.job, output.index),
            Self::Dead(output) => write!(f, "{DEAD}.{}.{}", output.job, output.index),
        }
    }
}

impl FromStr for Subject {
    type Err = SubjectError;
    fn from_str(text: &str) -> Result<Self, SubjectError> {
        let tokens: Vec<&str> = text.split('.').collect();
        match tokens[..] {
            [AR, class, job] => Ok(Self::Ar(token(class)?, token(job)?)),
            [DENOISE, class, job, index] => Ok(Self::Denoise(token(class)?, output(job, index)?)),
            [RESULT, job, index] => Ok(Self::Result(output(job, index)?)),
            [DONE, job, index] => Ok(Self::Done(output(job, index)?)),
            [PROGRESS, job, index] => Ok(Self::Progress(output(job, index)?)),
            [DEAD, job, index] => Ok(Self::Dead(output(job, index)?)),
            _ => Err(SubjectError::Subject),
        }
    }
}

fn token<T: FromStr>(text: &str) -> Result<T, SubjectError> {
    text.parse().map_err(|_| SubjectError::Subject)
}

fn output(job: &str, index: &str) -> Result<OutputId, SubjectError> {
    Ok(OutputId {
        job: token(job)?,
        index: token(index)?,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::OutputIndex;

    fn any_subject() -> impl Strategy<Value = Subject> {
        let class = prop::sample::select(PriorityClass::ALL.to_vec());
        (any::<u128>(), 0u8..10, 0u8..6, class).prop_map(|(bits, index, shape, class)| {
            let job = JobId::from_u128(bits);
            let output = job.output(OutputIndex::new(index).expect("below 10"));
            match shape {
                0 => Subject::Ar(class, job),
                1 => Subject::Denoise(class, output),
                2 => Subject::Result(output),
                3 => Subject::Done(output),
                4 => Subject::Progress(output),
                _ => Subject::Dead(output),
            }
        })
    }

    proptest! {
        #[test]
        fn every_subject_reads_back_from_its_text(subject in any_subject(), prefix in "[a-z0-9-]{1,32}") {
            let prefix: Prefix = prefix.parse().expect("allowed characters");
            prop_assert_eq!(prefix.parse(&prefix.subject(&subject)), Ok(subject));
        }

        #[test]
        fn a_text_is_a_subject_or_an_error(text in "(ar|dn|res|done|prog|dead|x)(\\.[a-z0-9.*>]{0,33}){0,4}") {
            if let Ok(subject) = text.parse::<Subject>() {
                prop_assert_eq!(subject.to_string(), text);
            }
        }
    }

    #[test]
    fn another_deployments_subject_is_not_ours() {
        let ours: Prefix = "a".parse().expect("allowed");
        let theirs: Prefix = "ab".parse().expect("allowed");
        let subject = Subject::Ar(PriorityClass::Standard, JobId::from_u128(1));
        assert_eq!(
            ours.parse(&theirs.subject(&subject)),
            Err(SubjectError::Subject)
        );
        for bad in ["", "A", "a.b", "a*", "a>", "a b"] {
            assert_eq!(bad.parse::<Prefix>(), Err(SubjectError::Prefix), "{bad}");
        }
    }
}
