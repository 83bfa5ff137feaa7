//! Who may ask, where a deployment tells its clients apart: names and the hashes of their keys, from a file. The keys
//! themselves are nowhere here but in requests.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{self, Read as _},
    path::Path,
    sync::Arc,
};

use protocol::{ErrorCode, JobRecord, Tenant, limits::TENANTS_MAX};
use serde::Deserialize;
use service::{
    bearer,
    file_error::{Place, without_values},
};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use toml::Spanned;
use warp::http::HeaderMap;

use crate::reply::ApiError;

/// What [`TENANTS_MAX`] weigh, with comments.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Of SHA-256.
const DIGEST_BYTES: usize = 32;

/// A file that names no tenants.
#[derive(Debug, thiserror::Error)]
pub enum TenantsError {
    /// Not there, not ours to read, or no text.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// Larger than anything we read.
    #[error("is larger than {FILE_BYTES_MAX} bytes")]
    TooLarge,
    /// What a line says cannot be meant. Never quotes it: it may be a key.
    #[error("{place}: {text}")]
    Line {
        /// Where it begins.
        place: Place,
        /// What is wrong with it.
        text: String,
    },
    /// Nobody could ask for anything.
    #[error("names no tenant")]
    Nobody,
}

/// The tenants of a deployment. Clones share them.
#[derive(Clone)]
pub struct Tenants(Arc<Vec<Known>>);

struct Known {
    tenant: Tenant,
    key_sha256: [u8; DIGEST_BYTES],
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Clients are not told apart.
    Anybody,
    /// One that brought its key.
    Tenant(Tenant),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantsFile {
    #[serde(default)]
    tenant: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Spanned<String>,
    key_sha256: Spanned<String>,
}

impl Tenants {
    /// Those that `file` names.
    ///
    /// # Errors
    ///
    /// With the line, and without what stands there.
    pub fn read(file: &Path) -> Result<Self, TenantsError> {
        let mut text = String::new();
        let opened = fs::File::open(file).map_err(TenantsError::Unreadable)?;
        let read = opened.take(FILE_BYTES_MAX + 1).read_to_string(&mut text);
        read.map_err(TenantsError::Unreadable)?;
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(TenantsError::TooLarge);
        }
        Self::parse(&text)
    }

    /// Those that the text of a file names.
    pub(crate) fn parse(text: &str) -> Result<Self, TenantsError> {
        parse(text)
    }

    /// Their names, in the file's order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &Tenant> {
        self.0.iter().map(|known| &known.tenant)
    }

    /// Whose key a request with these headers brings.
    fn find(&self, headers: &HeaderMap) -> Option<&Tenant> {
        let digest = Sha256::digest(bearer::key(headers)?);
        let is = |known: &&Known| known.key_sha256.ct_eq(&digest).into();
        self.0.iter().find(is).map(|known| &known.tenant)
    }
}

/// Who asks with these headers, in a deployment with these tenants or with none.
pub(crate) fn caller(tenants: Option<&Tenants>, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let Some(tenants) = tenants else {
        return Ok(Caller::Anybody);
    };
    let refuse = || {
        let text = "an API key is needed: Authorization: Bearer KEY";
        ApiError::new(ErrorCode::InvalidApiKey, text)
    };
    let tenant = tenants.find(headers).ok_or_else(refuse)?;
    Ok(Caller::Tenant(tenant.clone()))
}

/// As traces have it.
pub(crate) fn name_of(tenant: Option<&Tenant>) -> &str {
    tenant.map_or(Tenant::NONE, Tenant::as_str)
}

impl Caller {
    pub(crate) const fn tenant(&self) -> Option<&Tenant> {
        match self {
            Self::Anybody => None,
            Self::Tenant(tenant) => Some(tenant),
        }
    }

    /// Whether it is told of this job: what is another's, or nobody's, is not there for it.
    pub(crate) fn may_see(&self, record: &JobRecord) -> bool {
        match self {
            Self::Anybody => true,
            Self::Tenant(tenant) => record.tenant.as_ref() == Some(tenant),
        }
    }
}

/// Names only.
impl fmt::Debug for Tenants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(self.names().map(Tenant::as_str))
            .finish()
    }
}

fn parse(text: &str) -> Result<Tenants, TenantsError> {
    let at = |offset: usize, wrong: String| TenantsError::Line {
        place: Place::of(text, offset),
        text: wrong,
    };
    let file: TenantsFile = toml::from_str(text).map_err(|error| {
        // Its own text shows the line, and its message what a value is.
        let offset = error.span().map_or(0, |span| span.start);
        at(offset, without_values(error.message()))
    })?;
    let (mut known, mut names, mut keys) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for Entry { name, key_sha256 } in file.tenant {
        let at_name = |wrong| at(name.span().start, wrong);
        let at_key = |wrong| at(key_sha256.span().start, wrong);
        let tenant: Tenant = name
            .get_ref()
            .parse()
            .map_err(|error: protocol::TenantError| at_name(error.to_string()))?;
        let digest = digest(key_sha256.get_ref());
        let digest =
            digest.ok_or_else(|| at_key("key_sha256 is not 64 hexadecimal digits".to_owned()))?;
        if names.insert(tenant.clone(), ()).is_some() {
            return Err(at_name(format!("{tenant} is there twice")));
        }
        if let Some(other) = keys.insert(digest, tenant.clone()) {
            return Err(at_key(format!("{tenant} has the key of {other}")));
        }
        if known.len() == TENANTS_MAX {
            return Err(at_name(format!("more than {TENANTS_MAX} tenants")));
        }
        known.push(Known {
            tenant,
            key_sha256: digest,
        });
    }
    if known.is_empty() {
        return Err(TenantsError::Nobody);
    }
    Ok(Tenants(Arc::new(known)))
}

/// The bytes that 64 hexadecimal digits say.
fn digest(text: &str) -> Option<[u8; DIGEST_BYTES]> {
    let digits = text.len() == 2 * DIGEST_BYTES && text.bytes().all(|b| b.is_ascii_hexdigit());
    let mut bytes = [0; DIGEST_BYTES];
    for (byte, at) in bytes
        .iter_mut()
        .zip((0..).step_by(2))
        .take_while(|_| digits)
    {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    digits.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use warp::http::{HeaderValue, header::AUTHORIZATION};

    use super::*;
    use crate::fixtures;

    /// Of `sk-studio` and `sk-press`.
    const STUDIO: &str = "d44337f571881d1b64786d8843d8286d8c75ccf098c6e4eddc64dd9982978bec";
    const PRESS: &str = "76c9286280bdda1160bb8b70e407ea5ae2a39d59f94949b867238cc84f26c5d7";

    fn file(entries: &[(&str, &str)]) -> String {
        let entry = |(name, key): &(&str, &str)| {
            format!("[[tenant]]\nname = \"{name}\"\nkey_sha256 = \"{key}\"\n")
        };
        entries.iter().map(entry).collect()
    }

    fn headers(key: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let value = HeaderValue::try_from(format!("Bearer {key}")).unwrap();
        headers.insert(AUTHORIZATION, value);
        headers
    }

    #[test]
    fn a_key_is_its_tenants_and_no_other_opens() {
        let upper = PRESS.to_uppercase();
        let tenants = parse(&file(&[("studio", STUDIO), ("press", &upper)])).unwrap();
        for (key, tenant) in [("sk-studio", "studio"), ("sk-press", "press")] {
            let caller = caller(Some(&tenants), &headers(key));
            assert_eq!(caller, Ok(Caller::Tenant(tenant.parse().unwrap())));
        }
        for headers in [headers("sk-other"), headers(STUDIO), HeaderMap::new()] {
            let refused = caller(Some(&tenants), &headers).unwrap_err();
            assert_eq!(refused.error().code, ErrorCode::InvalidApiKey);
        }
        assert_eq!(caller(None, &HeaderMap::new()), Ok(Caller::Anybody));
        assert_eq!(format!("{tenants:?}"), r#"["studio", "press"]"#);
    }

    #[test]
    fn a_tenant_sees_its_own_jobs_and_anybody_all() {
        let of = |tenant: Option<&str>| protocol::JobRecord {
            tenant: tenant.map(|name| name.parse().unwrap()),
            ..fixtures::record(1)
        };
        let studio = Caller::Tenant("studio".parse().unwrap());
        for (tenant, seen) in [
            (Some("studio"), true),
            (Some("press"), false),
            (None, false),
        ] {
            assert_eq!(studio.may_see(&of(tenant)), seen, "{tenant:?}");
            assert!(Caller::Anybody.may_see(&of(tenant)));
        }
    }

    #[test]
    fn a_file_that_cannot_be_meant_is_refused_with_its_line_and_without_its_words() {
        let secret = "sk-live-secret";
        let table = [
            (
                file(&[("studio", STUDIO), ("studio", PRESS)]),
                Some(5),
                "twice",
            ),
            (
                file(&[("studio", STUDIO), ("press", STUDIO)]),
                Some(6),
                "the key of studio",
            ),
            (
                file(&[("Studio", STUDIO)]),
                Some(2),
                "tenant is `none`, or not",
            ),
            (file(&[("studio", secret)]), Some(3), "64 hexadecimal"),
            (file(&[("studio", &STUDIO[1..])]), Some(3), "64 hexadecimal"),
            (
                file(&[("none", STUDIO)]),
                Some(2),
                "tenant is `none`, or not",
            ),
            (
                format!("[[tenant]]\nname = \"a\"\nkey = \"{secret}\"\n"),
                Some(3),
                "unknown field",
            ),
            (
                format!("{}key = \"{secret}\"\n", file(&[("a", STUDIO)])),
                Some(4),
                "unknown field",
            ),
            (
                "[[tenant]]\nname = \"a\"\n".to_owned(),
                Some(1),
                "missing field",
            ),
            ("tenants = 3\n".to_owned(), Some(1), "unknown field"),
            (format!("[[tenant]]\nname = {secret}\n"), Some(2), ""),
            (
                format!("tenant = \"{secret}\"\n"),
                Some(1),
                "invalid type: string, expected",
            ),
            (
                format!("[[tenant]]\n\"{secret}\" = \"studio\"\n"),
                Some(2),
                "unknown field, expected `name` or `key_sha256`",
            ),
            (
                format!("[[tenant]]\nname = [\"{secret}\"]\n"),
                Some(2),
                "column 8",
            ),
            ("# nobody\n".to_owned(), None, "no tenant"),
        ];
        for (text, line, wanted) in table {
            let error = parse(&text).expect_err(&text);
            let shown = error.to_string();
            assert!(shown.contains(wanted), "{shown}");
            assert!(!shown.contains("live"), "{shown}");
            let at = match error {
                TenantsError::Line { place, .. } => Some(place.line),
                _ => None,
            };
            assert_eq!(at, line, "{shown}");
        }
    }

    #[test]
    fn there_are_so_many_tenants_and_no_more() {
        let entries: Vec<_> = (0..=TENANTS_MAX)
            .map(|i| (format!("t{i}"), format!("{i:064x}")))
            .collect();
        let entries: Vec<_> = entries
            .iter()
            .map(|(name, key)| (&name[..], &key[..]))
            .collect();
        assert_eq!(
            parse(&file(&entries[1..])).unwrap().names().count(),
            TENANTS_MAX
        );
        assert!(matches!(
            parse(&file(&entries)),
            Err(TenantsError::Line { .. })
        ));
    }
}
