//! Reading the JSON files of a checkpoint. Each part's own config struct lives beside the part.

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{ModelError, Result};

/// Reads a JSON file; an unknown field is no error (the files hold many that nothing here needs).
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let failed = |source| ModelError::Io {
        path: path.to_owned(),
        source,
    };
    // Reading a pipe would wait for its writer for ever.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(failed(std::io::Error::other("not a regular file")));
    }
    let text = std::fs::read(path).map_err(failed)?;
    serde_json::from_slice(&text).map_err(|source| ModelError::Json {
        path: path.to_owned(),
        source,
    })
}

/// Reads a part's config after making sure that it is that part's: `field` (`_class_name` in
/// diffusers' files, `model_type` in transformers') must be `expected`.
pub fn read_part_config<T: DeserializeOwned>(
    path: &Path,
    field: &str,
    expected: &str,
) -> Result<T> {
    let value: Value = read_json(path)?;
    expect_class(path, field, value.get(field), expected)?;
    serde_json::from_value(value).map_err(|source| ModelError::Json {
        path: path.to_owned(),
        source,
    })
}

pub(crate) fn expect_class(
    path: &Path,
    field: &str,
    found: Option<&Value>,
    expected: &str,
) -> Result<()> {
    let found = match found {
        Some(Value::String(found)) if found == expected => return Ok(()),
        Some(Value::String(found)) => found.clone(),
        Some(other) => other.to_string(),
        None => "absent".to_owned(),
    };
    Err(ModelError::ForeignClass {
        path: path.to_owned(),
        field: field.to_owned(),
        found,
        expected: expected.to_owned(),
    })
}
