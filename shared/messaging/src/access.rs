//! Who a process is to the broker and whom it believes: credentials and certificates, read from files when it connects.
//!
//! Files, because a command line is readable by everybody on the machine. Nothing of what they hold is ever shown; errors
//! name the file.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use async_nats::ConnectOptions;

use crate::{connection::split_credentials, error::BusError};

/// The files of one connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// An nkey's seed, a `.creds` file or `user:password`. Without one, what the address has before its `@`.
    pub credentials: Option<PathBuf>,
    /// Certificates of the authorities that the broker's is believed from, as PEM. With them only TLS will do: who stands
    /// in the way must not get the credentials by offering none.
    pub ca: Option<PathBuf>,
}

/// What a file of credentials may weigh: a JWT with many permissions is some KiB.
const CREDENTIALS_BYTES_MAX: u64 = 64 * 1024;

/// All authorities of an operating system are some 250 KiB.
const CERTIFICATES_BYTES_MAX: u64 = 1024 * 1024;

impl Access {
    /// What two flags name.
    pub fn files(credentials: Option<&PathBuf>, ca: Option<&PathBuf>) -> Self {
        Self {
            credentials: credentials.cloned(),
            ca: ca.cloned(),
        }
    }

    /// Looks at the files, for somebody who connects later.
    ///
    /// # Errors
    ///
    /// The one that [`Bus::connect`](crate::Bus::connect) would tell.
    pub fn check(&self) -> Result<(), BusError> {
        self.apply(ConnectOptions::new(), &[]).map(drop)
    }

    /// `options` with this access, and the addresses without credentials: the client library reads none from an address,
    /// and what it does not have it cannot log.
    pub(crate) fn apply(
        &self,
        options: ConnectOptions,
        urls: &[String],
    ) -> Result<(ConnectOptions, Vec<String>), BusError> {
        let (addresses, in_address) = split_credentials(urls);
        let credentials = match &self.credentials {
            Some(file) => Some(read(file).map_err(|source| BusError::Access {
                file: file.clone(),
                source,
            })?),
            None => in_address,
        };
        let mut options = match credentials {
            Some(Credentials::User(user, password)) => options.user_and_password(user, password),
            Some(Credentials::Token(token)) => options.token(token),
            Some(Credentials::Seed(seed)) => options.nkey(seed),
            Some(Credentials::Creds(text)) => {
                options
                    .credentials(&text)
                    .map_err(|source| BusError::Access {
                        file: self.credentials.clone().unwrap_or_default(),
                        source,
                    })?
            }
            None => options,
        };
        if let Some(file) = &self.ca {
            // The client library reads it again at each connect, and would only try on without it.
            holds_certificates(file).map_err(|source| BusError::Access {
                file: file.clone(),
                source,
            })?;
            options = options.add_root_certificates(file.clone());
        }
        let asked_for =
            |address: &String| ["tls://", "wss://"].iter().any(|s| address.starts_with(s));
        // Of every server, those that a server tells of too: the library takes TLS from an address to be of that one only.
        let options = options.require_tls(self.ca.is_some() || addresses.iter().any(asked_for));
        Ok((options, addresses))
    }
}

/// Without one no broker would be believed, and the client library would try for ever.
fn holds_certificates(file: &Path) -> io::Result<()> {
    let mut text = String::new();
    File::open(file)?
        .take(CERTIFICATES_BYTES_MAX)
        .read_to_string(&mut text)?;
    match text.contains("-----BEGIN CERTIFICATE-----") {
        true => Ok(()),
        false => Err(io::Error::other("holds no certificate (PEM)")),
    }
}

/// What a broker asks for.
#[derive(PartialEq, Eq)]
pub(crate) enum Credentials {
    User(String, String),
    Token(String),
    /// The private half of an nkey.
    Seed(String),
    /// A user's JWT and its nkey, as `nsc` writes them.
    Creds(String),
}

fn read(file: &Path) -> io::Result<Credentials> {
    let mut text = String::new();
    let limit = CREDENTIALS_BYTES_MAX + 1;
    File::open(file)?.take(limit).read_to_string(&mut text)?;
    if text.len() as u64 == limit {
        return Err(io::Error::other("too large for credentials"));
    }
    parse(&text).ok_or_else(|| {
        io::Error::other("is no nkey seed of a user, no .creds file and no user:password")
    })
}

/// By their look: a `.creds` file has a header, a user's seed begins with `SU`.
fn parse(text: &str) -> Option<Credentials> {
    if text.contains("BEGIN NATS USER JWT") {
        return Some(Credentials::Creds(text.to_owned()));
    }
    let text = text.trim();
    if text.starts_with("SU") && nkeys::KeyPair::from_seed(text).is_ok() {
        return Some(Credentials::Seed(text.to_owned()));
    }
    let (user, password) = text.split_once(':')?;
    let good = !user.is_empty() && !password.is_empty() && !text.contains(char::is_whitespace);
    good.then(|| Credentials::User(user.to_owned(), password.to_owned()))
}

/// A key pair of a user. The server's configuration gets the public half only: it holds no secret of its clients.
pub struct UserKey {
    /// For the server: `U…`.
    pub public: String,
    /// For the user alone: `SU…`.
    pub seed: String,
}

impl UserKey {
    /// From the system's source of chance.
    pub fn generate() -> Self {
        let pair = nkeys::KeyPair::new_user();
        Self {
            public: pair.public_key(),
            seed: pair.seed().expect("a fresh key pair has its private half"),
        }
    }

    /// The one whose private half `seed` is, if it is one of a user.
    pub fn of_seed(seed: &str) -> Option<Self> {
        let seed = seed.trim();
        let pair = nkeys::KeyPair::from_seed(seed).ok()?;
        let of_user = seed.starts_with("SU");
        of_user.then(|| Self {
            public: pair.public_key(),
            seed: seed.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_known_by_their_look() {
        let key = UserKey::generate();
        assert!(key.public.starts_with('U'));
        let creds = "-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------\n";
        let user = |user: &str, password: &str| {
            Some(Credentials::User(user.to_owned(), password.to_owned()))
        };
        let table = [
            (
                format!("{}\n", key.seed),
                Some(Credentials::Seed(key.seed.clone())),
            ),
            (creds.to_owned(), Some(Credentials::Creds(creds.to_owned()))),
            ("gateway:p:w\n".to_owned(), user("gateway", "p:w")),
            // Not a whole seed, and a public key, which is no secret and opens nothing.
            (key.seed[..20].to_owned(), None),
            (key.public, None),
            ("user:".to_owned(), None),
            (":password".to_owned(), None),
            ("user: password".to_owned(), None),
            (String::new(), None),
        ];
        for (text, wanted) in table {
            assert!(parse(&text) == wanted, "{}", text.len());
        }
    }

    #[test]
    fn a_seed_has_the_public_half_that_it_was_made_with() {
        let key = UserKey::generate();
        let read = UserKey::of_seed(&format!("{}\n", key.seed)).expect("a seed");
        assert!(read.public == key.public && read.seed == key.seed);
        let account = nkeys::KeyPair::new_account().seed().expect("a fresh pair");
        for seed in [&account[..], &key.public[..], &key.seed[1..], "SU", ""] {
            assert!(UserKey::of_seed(seed).is_none(), "{}", seed.len());
        }
    }

    #[test]
    fn who_asks_one_server_for_tls_gets_it_of_all() {
        let required = |urls: &[&str]| {
            let urls: Vec<_> = urls.iter().map(ToString::to_string).collect();
            let applied = Access::default().apply(ConnectOptions::new(), &urls);
            let (options, _) = applied.expect("nothing to read");
            format!("{options:?}").contains("\"tls_required\": true")
        };
        assert!(required(&["tls://n1:4222", "nats://n2:4222"]));
        assert!(required(&["wss://n1:443"]));
        assert!(!required(&["nats://tls:4222"]));
    }

    #[test]
    fn files_that_cannot_be_used_are_named_and_not_shown() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("gateway.nk");
        std::fs::write(&file, "not-a-secret-we-know").unwrap();
        let missing = folder.path().join("none");
        for access in [
            // A file of something else.
            Access {
                credentials: None,
                ca: Some(file.clone()),
            },
            Access {
                credentials: Some(file.clone()),
                ca: None,
            },
            Access {
                credentials: None,
                ca: Some(missing.clone()),
            },
        ] {
            let applied = access.apply(ConnectOptions::new(), &[]);
            let Err(BusError::Access {
                file: named,
                source,
            }) = applied
            else {
                panic!("it was taken")
            };
            assert!(named == file || named == missing, "{named:?}");
            assert!(!source.to_string().contains("secret-we"), "{source}");
        }
    }
}
