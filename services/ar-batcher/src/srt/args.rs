//! Flags of `--engine srt`.

use std::{fmt, str::FromStr, time::Duration};

use service::{some_seconds, unshown, without_credentials};

/// Which SRT servers write, and how long they may take.
#[derive(Debug, Clone, clap::Args)]
pub struct SrtArgs {
    /// SRT server that `--engine srt` writes with, such as http://10.0.0.5:30020; repeat it for several
    #[arg(
        long = "srt-url",
        value_name = "URL",
        value_delimiter = ',',
        value_parser = unshown::<SrtUrl>(),
        required_if_eq("engine", "srt")
    )]
    pub srt_urls: Vec<SrtUrl>,

    /// Seconds that one call to an SRT server may take; less than `--stall-max-s`, because SRT tells no progress
    // Longer than 32 pictures of 2048 x 2048 together: 4353 tokens at the 33.2 s for 1281 of the published table.
    #[arg(
        long = "srt-timeout-s",
        value_name = "SECONDS",
        default_value = "240",
        requires = "srt_urls",
        value_parser = some_seconds
    )]
    pub srt_timeout: Duration,
}

/// The address of an SRT server. Shown without its credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct SrtUrl(String);

/// A text that is no address of an SRT server.
#[derive(Debug, thiserror::Error)]
#[error("not a URL such as http://127.0.0.1:30020")]
pub struct NoSrtUrl;

impl SrtUrl {
    /// The address of one of its routes; `path` begins with a slash.
    pub(crate) fn route(&self, path: &str) -> String {
        format!("{}{path}", self.0)
    }

    /// Host and port, for a trace.
    pub(crate) fn server(&self) -> Option<(String, u16)> {
        let url = reqwest::Url::parse(&self.0).ok()?;
        Some((url.host_str()?.to_owned(), url.port_or_known_default()?))
    }
}

impl FromStr for SrtUrl {
    type Err = NoSrtUrl;

    fn from_str(text: &str) -> Result<Self, NoSrtUrl> {
        let base = text.trim_end_matches('/');
        let url = reqwest::Url::parse(base).map_err(|_| NoSrtUrl)?;
        // TLS would be a tree of crates for a server that stands in the same rack; a tunnel or a proxy does it.
        let plain = url.scheme() == "http" && url.query().is_none() && url.fragment().is_none();
        if plain && url.has_host() {
            Ok(Self(base.to_owned()))
        } else {
            Err(NoSrtUrl)
        }
    }
}

impl fmt::Display for SrtUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&without_credentials(&self.0))
    }
}

impl fmt::Debug for SrtUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailing_slash_changes_nothing() {
        for text in ["http://h:30020", "http://h:30020/", "http://h:30020//"] {
            let url: SrtUrl = text.parse().expect("a URL");
            assert_eq!(url.route("/generate"), "http://h:30020/generate", "{text}");
        }
        let behind_a_path: SrtUrl = "http://h/ar/".parse().expect("a URL");
        assert_eq!(behind_a_path.route("/health"), "http://h/ar/health");
    }

    #[test]
    fn other_addresses_are_refused() {
        for text in [
            "",
            "h:30020",
            "https://h",
            "nats://h",
            "http://",
            "http://h/?a=1",
            "http://h/#a",
        ] {
            assert!(text.parse::<SrtUrl>().is_err(), "{text}");
        }
    }

    #[test]
    fn credentials_are_sent_and_not_shown() {
        let url: SrtUrl = "http://user:secret@h:1/".parse().expect("a URL");
        assert_eq!(url.route("/health"), "http://user:secret@h:1/health");
        assert_eq!(format!("{url} {url:?}"), "http://h:1 http://h:1");
    }
}
