//! Typed ids. Each has one text form, used in subjects, HTTP paths, logs and on the wire alike, and
//! `FromStr` undoes `Display` exactly.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, de};
use uuid::Uuid;

use crate::limits::{OUTPUTS_PER_JOB_MAX, SEED_MAX};

/// A text that is not the id it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not 32 lowercase hexadecimal digits.
    #[error("job id is not 32 lowercase hexadecimal digits")]
    Job,
    /// Not `<job>-<index>`.
    #[error("output id is not <job id>-<index>")]
    Output,
    /// Not a whole number from 0 to 9.
    #[error("output index is not a whole number below {OUTPUTS_PER_JOB_MAX}")]
    Index,
    /// Not 1 to 64 of `a-z`, `0-9`, `-`.
    #[error("worker id is not 1 to 64 of a-z, 0-9 and -")]
    Worker,
    /// Above `i64::MAX`.
    #[error("seed is above {SEED_MAX}")]
    Seed,
    /// Not a known priority class.
    #[error("unknown priority class")]
    Class,
    /// Not 32 lowercase hexadecimal digits.
    #[error("prior id is not 32 lowercase hexadecimal digits")]
    Prior,
    /// Not 32 lowercase hexadecimal digits, or all of them 0.
    #[error("trace id is not 32 lowercase hexadecimal digits, of which one is not 0")]
    Trace,
}

/// Writes and reads a type as its one text form.
macro_rules! serde_as_text {
    ($type:ty) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;

/// One accepted request. A UUIDv7, so that ids sort by time of acceptance and cannot be guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(Uuid);

impl JobId {
    /// A fresh id.
    pub fn generate() -> Self {
        Self(Uuid::now_v7())
    }

    /// From its 128 bits; for tests and snapshots.
    pub const fn from_u128(bits: u128) -> Self {
        Self(Uuid::from_u128(bits))
    }

    /// The id of this job's output `index`.
    pub const fn output(self, index: OutputIndex) -> OutputId {
        OutputId { job: self, index }
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0.as_u128())
    }
}

impl FromStr for JobId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if text.len() != 32 || !text.bytes().all(hex) {
            return Err(IdError::Job);
        }
        Uuid::try_parse(text).map(Self).map_err(|_| IdError::Job)
    }
}
serde_as_text!(JobId);

/// The trace that a job was accepted in, as W3C's trace context writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(u128);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for TraceId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        let digits = text.len() == 32 && text.bytes().all(hex);
        let bits = digits
            .then(|| u128::from_str_radix(text, 16).ok())
            .flatten();
        bits.filter(|bits| *bits != 0)
            .map(Self)
            .ok_or(IdError::Trace)
    }
}
serde_as_text!(TraceId);

/// Which of a job's outputs, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct OutputIndex(u8);

impl OutputIndex {
    /// Index 0.
    pub const FIRST: Self = Self(0);

    /// `None` from [`OUTPUTS_PER_JOB_MAX`] on.
    pub const fn new(index: u8) -> Option<Self> {
        if index < OUTPUTS_PER_JOB_MAX {
            Some(Self(index))
        } else {
            None
        }
    }

    /// The indices `0..outputs`, as far as indices go.
    pub fn first(outputs: u8) -> impl Iterator<Item = Self> {
        (0..outputs.min(OUTPUTS_PER_JOB_MAX)).map(Self)
    }

    /// As a number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl fmt::Display for OutputIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for OutputIndex {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        match text.as_bytes() {
            [digit @ b'0'..=b'9'] => Self::new(digit - b'0').ok_or(IdError::Index),
            _ => Err(IdError::Index),
        }
    }
}

impl<'de> Deserialize<'de> for OutputIndex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(u8::deserialize(deserializer)?).ok_or_else(|| de::Error::custom(IdError::Index))
    }
}

/// One output of one job: what a denoiser paints and what a result answers. Text form `<job>-<index>`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OutputId {
    /// The job.
    pub job: JobId,
    /// Which of its outputs.
    pub index: OutputIndex,
}

impl fmt::Display for OutputId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.job, self.index)
    }
}

impl FromStr for OutputId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let (job, index) = text.split_once('-').ok_or(IdError::Output)?;
        let (job, index) = (job.parse(), index.parse());
        Ok(Self {
            job: job.map_err(|_| IdError::Output)?,
            index: index.map_err(|_| IdError::Output)?,
        })
    }
}
serde_as_text!(OutputId);

/// A running worker process, unique among those alive; doubles as a KV key and a subject token.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(String);

impl WorkerId {
    /// A fresh id such as `denoiser-0198c0ffee…`.
    pub fn generate(role: crate::Role) -> Self {
        Self(format!("{role}-{:032x}", Uuid::now_v7().as_u128()))
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for WorkerId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if text.is_empty() || text.len() > 64 || !text.bytes().all(allowed) {
            return Err(IdError::Worker);
        }
        Ok(Self(text.to_owned()))
    }
}
serde_as_text!(WorkerId);

/// The seed of one output. AR sampling and the initial latents each draw from the start of this seed's stream, so
/// the picture depends on nothing but the request, the seed and the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Seed(u64);

impl Seed {
    /// `None` above [`SEED_MAX`].
    pub const fn new(seed: u64) -> Option<Self> {
        if seed <= SEED_MAX {
            Some(Self(seed))
        } else {
            None
        }
    }

    /// The seed of output `index` of a request with this seed; `None` when the sum is above [`SEED_MAX`].
    pub fn offset(self, index: OutputIndex) -> Option<Self> {
        self.0
            .checked_add(u64::from(index.get()))
            .and_then(Self::new)
    }

    /// As a number.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(u64::deserialize(deserializer)?).ok_or_else(|| de::Error::custom(IdError::Seed))
    }
}

/// Which queue a job waits in; a token of the subject, because the server ranks pullers, not messages. Ordered: the
/// class that goes first is the least.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PriorityClass {
    /// Before the others.
    High,
    /// What a request gets that asks for nothing.
    #[default]
    Standard,
    /// After the others, for work that nobody waits for.
    Low,
}

impl PriorityClass {
    /// Every class, the first to go first.
    pub const ALL: [Self; 3] = [Self::High, Self::Standard, Self::Low];
}

impl fmt::Display for PriorityClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::High => "high",
            Self::Standard => "standard",
            Self::Low => "low",
        })
    }
}

impl FromStr for PriorityClass {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let mut all = Self::ALL.into_iter();
        all.find(|class| class.to_string() == text)
            .ok_or(IdError::Class)
    }
}
serde_as_text!(PriorityClass);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_output_id_reads_back_from_its_text(bits: u128, index in 0..OUTPUTS_PER_JOB_MAX) {
            let id = JobId::from_u128(bits).output(OutputIndex::new(index).expect("below the maximum"));
            prop_assert_eq!(id.to_string().parse(), Ok(id));
        }

        #[test]
        fn a_text_that_parses_is_the_only_text_of_its_id(text in "[0-9a-fA-F+-]{30,36}") {
            if let Ok(id) = text.parse::<OutputId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }

    #[test]
    fn texts_that_are_no_ids_are_refused() {
        for text in [
            "",
            "-",
            "-0",
            "00",
            "0123456789abcdef0123456789abcdeF",
            "0123456789abcdef0123456789abcde-0",
        ] {
            assert_eq!(text.parse::<OutputId>(), Err(IdError::Output), "{text}");
            assert_eq!(text.parse::<JobId>(), Err(IdError::Job), "{text}");
        }
        let job = JobId::from_u128(7);
        for index in ["10", "+1", "", "01", "a", "1-1"] {
            assert_eq!(
                format!("{job}-{index}").parse::<OutputId>(),
                Err(IdError::Output),
                "{index}"
            );
        }
        for worker in ["", "a.b", "A", "a b", "a*", &"a".repeat(65)] {
            assert_eq!(worker.parse::<WorkerId>(), Err(IdError::Worker), "{worker}");
        }
    }

    #[test]
    fn a_trace_has_the_text_that_w3c_gives_it() {
        let text = "0af7651916cd43dd8448eb211c80319c";
        assert_eq!(
            text.parse::<TraceId>().map(|id| id.to_string()),
            Ok(text.to_owned())
        );
        for bad in [
            "",
            &text[1..],
            &"0".repeat(32),
            &text.to_uppercase(),
            "+af7651916cd43dd8448eb211c80319c",
        ] {
            assert_eq!(bad.parse::<TraceId>(), Err(IdError::Trace), "{bad}");
        }
    }

    #[test]
    fn the_last_seed_has_no_successor() {
        let last = Seed::new(SEED_MAX).expect("the maximum is allowed");
        let second = OutputIndex::new(1).expect("1 is an index");
        assert_eq!(last.offset(second), None);
        assert_eq!(Seed::new(SEED_MAX + 1), None);
        assert_eq!(Seed::new(41).and_then(|s| s.offset(second)), Seed::new(42));
    }
}
