//! Counts of one part's weights, as `--check-model` prints them.

use std::fmt;
use std::ops::Add;

/// What the files of one part hold, and how much of it a load keeps in memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartReport {
    pub tensors: u64,
    pub parameters: u64,
    /// Bytes in the files.
    pub bytes: u64,
    /// Bytes in memory at the dtype of the load: parts that text-to-image never runs stay on disk.
    pub bytes_kept: u64,
}

impl Add for PartReport {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            tensors: self.tensors + other.tensors,
            parameters: self.parameters + other.parameters,
            bytes: self.bytes + other.bytes,
            bytes_kept: self.bytes_kept + other.bytes_kept,
        }
    }
}

impl fmt::Display for PartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            tensors,
            parameters,
            bytes,
            ..
        } = self;
        write!(
            f,
            "{tensors} tensors, {parameters} parameters, {bytes} bytes"
        )
    }
}
