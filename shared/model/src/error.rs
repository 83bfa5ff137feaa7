//! What can go wrong in this crate, each in one line that names the file, the key and both shapes.
//! Sources are chained, not printed: a caller that wants them prints the chain.

use std::fmt;
use std::path::{Path, PathBuf};

/// The shorthand of this crate.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// A tensor shape as people write it: `[4, 16]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape(pub Vec<i64>);

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Every failure of loading a checkpoint or computing with it.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("cannot read {}", path.display())]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    #[error("{}: not the JSON this model needs", path.display())]
    Json {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("{}: {field} is {found}, need {expected}", path.display())]
    ForeignClass {
        path: PathBuf,
        field: String,
        found: String,
        expected: String,
    },
    #[error("{}: {field} {problem}", path.display())]
    Config {
        path: PathBuf,
        field: String,
        problem: String,
    },

    #[error("{}: key {key} is missing, need shape {expected}", file.display())]
    MissingKey {
        file: PathBuf,
        key: String,
        expected: Shape,
    },
    #[error("{}: key {key} of shape {found} is not part of this model", file.display())]
    ExtraKey {
        file: PathBuf,
        key: String,
        found: Shape,
    },
    #[error("{}: key {key} has shape {found}, need {expected}", file.display())]
    WrongShape {
        file: PathBuf,
        key: String,
        found: Shape,
        expected: Shape,
    },
    #[error("{}: key {key} has dtype {found}, need a float of 16 or 32 bits", file.display())]
    WrongDtype {
        file: PathBuf,
        key: String,
        found: String,
    },
    #[error("{}: truncated, holds {found} bytes of {expected}", file.display())]
    Truncated {
        file: PathBuf,
        found: u64,
        expected: u64,
    },
    #[error("{}: not a safetensors file, {problem}", file.display())]
    BadHeader { file: PathBuf, problem: String },
    #[error("{}: shard is missing, {} puts key {key} there", file.display(), index.display())]
    MissingShard {
        file: PathBuf,
        index: PathBuf,
        key: String,
    },
    #[error("{}: key {key} is missing, {} puts it there", file.display(), index.display())]
    NotInShard {
        file: PathBuf,
        index: PathBuf,
        key: String,
    },

    #[error("{}: {problem}", path.display())]
    Tokenizer { path: PathBuf, problem: String },
    #[error("{}: chat template {problem}", path.display())]
    Template { path: PathBuf, problem: String },

    /// The request, not the checkpoint, is at fault.
    #[error("{field} {problem}")]
    Request {
        field: &'static str,
        problem: String,
    },
    /// The observer asked to stop.
    #[error("interrupted by the caller")]
    Interrupted,
    /// Half precision overflowed: this model needs bf16 or f32.
    #[error("the {what} is not finite")]
    NotFinite { what: &'static str },
    /// libtorch's first line; the rest is a C++ stack trace.
    #[error("libtorch: {0}")]
    Torch(String),
    #[error("cannot encode the picture as {format}")]
    Encode {
        format: &'static str,
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl ModelError {
    pub(crate) fn config(
        path: &Path,
        field: impl Into<String>,
        problem: impl Into<String>,
    ) -> Self {
        Self::Config {
            path: path.to_owned(),
            field: field.into(),
            problem: problem.into(),
        }
    }

    pub(crate) fn request(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Request {
            field,
            problem: problem.into(),
        }
    }
}

impl From<tch::TchError> for ModelError {
    fn from(error: tch::TchError) -> Self {
        let text = match error {
            tch::TchError::Torch(text) => text,
            other => other.to_string(),
        };
        Self::Torch(text.lines().next().unwrap_or_default().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_libtorch_error_keeps_its_first_line_only() {
        let error = ModelError::from(tch::TchError::Torch(
            "bad size\nException raised from\n#0".into(),
        ));
        assert!(matches!(error, ModelError::Torch(text) if text == "bad size"));
    }
}
