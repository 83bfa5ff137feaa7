//! The key of whoever looks after a process: for what its listener of probes does not do for everybody.
//!
//! From a file, because a command line is readable by everybody on the machine. Nothing ever shows it.

use std::{fmt, fs::File, io::Read as _, os::unix::fs::PermissionsExt as _, path::Path, sync::Arc};

use subtle::ConstantTimeEq as _;
use warp::http::HeaderMap;

use crate::bearer;

/// Nobody tries 2^64 keys over a network; `openssl rand -hex 32` writes 64 characters.
const KEY_CHARS_MIN: usize = 16;

/// What a header may well hold.
const KEY_CHARS_MAX: usize = 512;

/// The key.
#[derive(Clone)]
pub struct AdminKey {
    key: Arc<str>,
    readable_by_all: bool,
}

/// A file that holds no key.
#[derive(Debug, thiserror::Error)]
pub enum AdminKeyError {
    /// Not there, not ours to read, or no text.
    #[error("cannot be read: {0}")]
    Unreadable(std::io::Error),
    /// Of no use as a key.
    #[error(
        "is not one line of {KEY_CHARS_MIN} to {KEY_CHARS_MAX} visible ASCII characters, without a space in it"
    )]
    Unusable,
}

impl AdminKey {
    /// The one line of `file`.
    ///
    /// # Errors
    ///
    /// Without a word of what the file holds.
    pub fn read(file: &Path) -> Result<Self, AdminKeyError> {
        let file = File::open(file).map_err(AdminKeyError::Unreadable)?;
        let about = file.metadata().map_err(AdminKeyError::Unreadable)?;
        // With room for the end of its line: what fills it is too long whatever follows.
        let limit = KEY_CHARS_MAX as u64 + 3;
        let mut text = String::new();
        let read = file.take(limit).read_to_string(&mut text);
        read.map_err(AdminKeyError::Unreadable)?;
        let key = parse(&text).ok_or(AdminKeyError::Unusable)?;
        Ok(Self {
            key: key.into(),
            readable_by_all: about.permissions().mode() & 0o004 != 0,
        })
    }

    /// Whether a request with these headers brings it. Takes as long for every wrong key of its length.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        bearer::key(headers).is_some_and(|key| key.as_bytes().ct_eq(self.key.as_bytes()).into())
    }

    /// The header `Authorization` of a request that brings it.
    pub fn authorization(&self) -> String {
        format!("Bearer {}", self.key)
    }

    /// Whether everybody on this machine could read its file. Secrets that containers are given often are so, so that
    /// it is a warning and no refusal.
    pub const fn is_readable_by_all(&self) -> bool {
        self.readable_by_all
    }
}

/// Says nothing.
impl fmt::Debug for AdminKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdminKey(..)")
    }
}

fn parse(text: &str) -> Option<&str> {
    let key = text.trim();
    let fits = (KEY_CHARS_MIN..=KEY_CHARS_MAX).contains(&key.len());
    (fits && key.bytes().all(|byte| byte.is_ascii_graphic())).then_some(key)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use warp::http::{HeaderValue, header::AUTHORIZATION};

    use super::*;

    const KEY: &str = "0123456789abcdef";

    #[test]
    fn a_key_is_one_line_that_cannot_be_guessed() {
        let longest = "k".repeat(KEY_CHARS_MAX);
        for good in [KEY, "0123456789abcdef\n", " 0123456789abcdef\r\n", &longest] {
            assert!(parse(good).is_some(), "{good}");
        }
        let longer = "k".repeat(KEY_CHARS_MAX + 1);
        for bad in [
            "",
            "\n",
            "0123456789abcde",
            "01234567 89abcdef",
            "01234567\t89abcdef",
            "0123456789abcdef\n0123456789abcdef",
            "0123456789abcde\u{e9}",
            &longer,
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_file_tells_its_key_to_nobody_and_who_could_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        assert!(matches!(
            AdminKey::read(&file),
            Err(AdminKeyError::Unreadable(_))
        ));
        for (text, mode, by_all) in [(KEY, 0o600, false), (KEY, 0o640, false), (KEY, 0o644, true)] {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let key = AdminKey::read(&file).unwrap();
            assert_eq!(key.is_readable_by_all(), by_all, "{mode:o}");
            assert!(!format!("{key:?}").contains("0123"));
        }
        fs::write(&file, "k".repeat(10_000)).unwrap();
        let error = AdminKey::read(&file).unwrap_err().to_string();
        assert!(
            error.starts_with("is not one line") && !error.contains("kkk"),
            "{error}"
        );
    }

    #[test]
    fn only_the_key_itself_opens() {
        let key = AdminKey {
            key: KEY.into(),
            readable_by_all: false,
        };
        let opens = |value: String| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, HeaderValue::try_from(value).unwrap());
            key.is_in(&headers)
        };
        assert!(!key.is_in(&HeaderMap::new()));
        assert!(opens(format!("Bearer {KEY}")));
        for other in ["0123456789abcdeg", "0123456789abcde", "0123456789abcdef0"] {
            assert!(!opens(format!("Bearer {other}")), "{other}");
        }
        assert!(!opens(KEY.to_owned()));
    }
}
