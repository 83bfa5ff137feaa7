//! The prior tokens: the only thing of size that the AR stage hands to the denoisers.

use serde::{Deserialize, Deserializer, Serialize, de};

use std::{fmt, str::FromStr};

use crate::{IdError, ImageSize, Message, ids::serde_as_text, limits::SIDE_PIXELS_MULTIPLE};

/// A token grid that does not hold together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PriorTokensError {
    /// The number of ids is not rows x columns.
    #[error("{ids} prior tokens do not fill a grid of {rows} x {columns}")]
    Count {
        /// Ids that came.
        ids: usize,
        /// Rows of the grid.
        rows: u16,
        /// Columns of the grid.
        columns: u16,
    },
    /// An odd number of bytes.
    #[error("prior tokens are not pairs of bytes")]
    Bytes,
}

/// The grid of prior tokens of one output, `u16`, row-major, one token per 32 x 32 pixels and not yet upsampled:
/// 32 x 32 ids, 2 KB, at 1024 x 1024. Travels as little-endian bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct PriorTokens {
    rows: u16,
    columns: u16,
    ids: Vec<u16>,
}

impl PriorTokens {
    /// Checks that `ids` fills the grid.
    pub fn new(rows: u16, columns: u16, ids: Vec<u16>) -> Result<Self, PriorTokensError> {
        if ids.len() != usize::from(rows) * usize::from(columns) {
            return Err(PriorTokensError::Count {
                ids: ids.len(),
                rows,
                columns,
            });
        }
        Ok(Self { rows, columns, ids })
    }

    /// Rows (`token_h`).
    pub const fn rows(&self) -> u16 {
        self.rows
    }

    /// Columns (`token_w`).
    pub const fn columns(&self) -> u16 {
        self.columns
    }

    /// The ids, row-major.
    pub fn ids(&self) -> &[u16] {
        &self.ids
    }

    /// The size of the picture that has this grid; `None` for a grid that no picture has.
    pub fn size(&self) -> Option<ImageSize> {
        let side = |tokens: u16| u32::from(tokens) * SIDE_PIXELS_MULTIPLE;
        ImageSize::new(side(self.columns), side(self.rows)).ok()
    }

    /// Whether this is the grid of a picture of `size`.
    pub fn fits(&self, size: ImageSize) -> bool {
        size.prior_grid() == (self.rows, self.columns)
    }
}

/// Prints the grid's shape, not its contents: hundreds of ids in a log line help nobody.
impl std::fmt::Debug for PriorTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PriorTokens({} x {})", self.rows, self.columns)
    }
}

/// The bytes of a [`PriorTokens`].
#[derive(Serialize, Deserialize)]
#[serde(rename = "PriorTokens", deny_unknown_fields)]
struct Wire {
    rows: u16,
    columns: u16,
    #[serde(with = "serde_bytes")]
    ids_le: Vec<u8>,
}

impl Serialize for PriorTokens {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ids_le = self.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        Wire {
            rows: self.rows,
            columns: self.columns,
            ids_le,
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PriorTokens {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let wire = Wire::deserialize(deserializer)?;
        let (pairs, rest) = wire.ids_le.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(de::Error::custom(PriorTokensError::Bytes));
        }
        let ids = pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect();
        Self::new(wire.rows, wire.columns, ids).map_err(de::Error::custom)
    }
}

/// What the AR stage consumed and produced for one output, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PriorUsage {
    /// Tokens of the expanded prompt.
    pub prompt_tokens: u32,
    /// Tokens sampled: preview grid, large grid and the end token.
    pub generated_tokens: u32,
    /// They were sampled for an earlier output, and the AR model did not run for this one.
    pub cached: bool,
}

/// The name of stored prior tokens: 128 bits that follow from everything they follow from, so that equal requests have
/// equal names. Text form 32 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PriorId(u128);

impl PriorId {
    /// From its number.
    pub const fn from_u128(bits: u128) -> Self {
        Self(bits)
    }
}

impl fmt::Display for PriorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for PriorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for PriorId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<Self, IdError> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 32 || !text.bytes().all(digit) {
            return Err(IdError::Prior);
        }
        u128::from_str_radix(text, 16)
            .map(Self)
            .map_err(|_| IdError::Prior)
    }
}
serde_as_text!(PriorId);

/// Prior tokens with the name that they are stored under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredPrior {
    /// Their name.
    pub id: PriorId,
    /// The grid.
    pub tokens: PriorTokens,
    /// What they took when they were sampled; not marked as cached.
    pub usage: PriorUsage,
}

impl Message for StoredPrior {
    const KIND: &'static str = "stored_prior";
    const VERSION: u16 = 1;
}
