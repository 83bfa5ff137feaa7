//! The key that a gateway asks for, where it tells its clients apart.

use std::{ffi::OsStr, fmt, fs::File, io::Read as _, path::Path, str::FromStr};

use clap::{Arg, Command, builder::TypedValueParser, error::ErrorKind};

/// What a header may well hold.
const KEY_CHARS_MAX: usize = 512;

/// A text or a file that is no key.
#[derive(Debug, thiserror::Error)]
pub enum ApiKeyError {
    /// Not there, not ours to read, or no text.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    /// Of no use as a key.
    #[error("is not 1 to {KEY_CHARS_MAX} visible ASCII characters, without a space")]
    Unusable,
}

/// The key. Nothing shows it.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// The one line of `file`.
    ///
    /// # Errors
    ///
    /// Without a word of what the file holds.
    pub fn read(file: &Path) -> Result<Self, ApiKeyError> {
        let mut text = String::new();
        let file = File::open(file).map_err(ApiKeyError::Unreadable)?;
        // With room for the end of its line: what fills it is too long whatever follows.
        let read = file
            .take(KEY_CHARS_MAX as u64 + 3)
            .read_to_string(&mut text);
        read.map_err(ApiKeyError::Unreadable)?;
        text.trim().parse()
    }

    /// As a request brings it.
    pub(crate) fn authorization(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl FromStr for ApiKey {
    type Err = ApiKeyError;
    fn from_str(text: &str) -> Result<Self, ApiKeyError> {
        let fits = (1..=KEY_CHARS_MAX).contains(&text.len());
        if fits && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(text.to_owned()))
        } else {
            Err(ApiKeyError::Unusable)
        }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}

/// Takes a key from the environment, where it often ends with a line. What clap says itself of a value that cannot be
/// used shows the value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quietly;

impl TypedValueParser for Quietly {
    type Value = ApiKey;

    fn parse_ref(
        &self,
        command: &Command,
        _of: Option<&Arg>,
        value: &OsStr,
    ) -> Result<ApiKey, clap::Error> {
        let text = value.to_str().ok_or(ApiKeyError::Unusable);
        let key = text.and_then(|text| text.trim().parse());
        key.map_err(|error| {
            let text = format!("the key in FRESCO_API_KEY {error}");
            command.clone().error(ErrorKind::ValueValidation, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_of_the_environment_is_not_shown_when_it_cannot_be_used() {
        let parse = |text: &str| Quietly.parse_ref(&Command::new("fresco"), None, OsStr::new(text));
        let key = parse("sk-1\n").expect("a key");
        assert_eq!(key.authorization(), "Bearer sk-1");
        let error = parse("sk-live secret").expect_err("two words").to_string();
        assert!(error.contains("FRESCO_API_KEY"), "{error}");
        assert!(!error.contains("live"), "{error}");
    }

    #[test]
    fn a_key_is_one_visible_word() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("key");
        for (text, good) in [
            ("sk-1\n", true),
            ("sk-1", true),
            ("", false),
            ("sk 1", false),
            ("sk-1\nsk-2", false),
            (&"k".repeat(KEY_CHARS_MAX + 1), false),
        ] {
            std::fs::write(&file, text).expect("a writable folder");
            let key = ApiKey::read(&file);
            assert_eq!(key.is_ok(), good, "{text}");
            if let Ok(key) = key {
                assert_eq!(key.authorization(), "Bearer sk-1");
                assert!(!format!("{key:?}").contains("sk"), "{key:?}");
            }
        }
    }
}
