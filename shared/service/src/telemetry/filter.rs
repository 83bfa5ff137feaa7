//! What a process logs: as it was told at its start, until it is told otherwise.

use std::sync::{Mutex, OnceLock, PoisonError};

use tracing_subscriber::{
    EnvFilter, Registry,
    filter::{Directive, ParseError},
    reload::Handle,
};

/// warp calls every client that leaves early an error; nobody can act on one. A filter that names the module itself
/// brings it back.
const QUIET: &str = "warp::server::run=off";

/// A text that is no filter.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// One of its directives.
    #[error("`{directive}` is not a directive of a log filter")]
    Directive {
        /// As it was written.
        directive: String,
        /// What the reader found.
        #[source]
        source: Option<ParseError>,
    },
    /// There is no log to filter.
    #[error("the log cannot be filtered")]
    NoLog,
}

/// The log's filter. The subscriber is the process's, and so is its filter.
static KEPT: OnceLock<Kept> = OnceLock::new();

struct Kept {
    at_start: String,
    /// Locked for changing both.
    now: Mutex<String>,
    handle: Handle<EnvFilter, Registry>,
}

/// The filter that `text` says.
pub(super) fn parse(text: &str) -> Result<EnvFilter, FilterError> {
    let refuse = |directive: &str, source| FilterError::Directive {
        directive: directive.trim().escape_debug().to_string(),
        source,
    };
    // One by one, as the library splits them: it does not say which one is wrong.
    for directive in text.split(',').filter(|directive| !directive.is_empty()) {
        if directive.contains(char::is_control) {
            return Err(refuse(directive, None));
        }
        let parsed: Result<Directive, _> = directive.parse();
        parsed.map_err(|error| refuse(directive, Some(error)))?;
    }
    let whole = EnvFilter::try_new(format!("{QUIET},{text}"));
    whole.map_err(|error| refuse(text, Some(error)))
}

/// From now on [`replace`] changes the log that started with `at_start`.
pub(super) fn keep(at_start: &str, handle: Handle<EnvFilter, Registry>) {
    let kept = Kept {
        at_start: at_start.to_owned(),
        now: Mutex::new(at_start.to_owned()),
        handle,
    };
    if KEPT.set(kept).is_err() {
        tracing::debug!("the log was started twice");
    }
}

/// What is logged now.
pub fn now() -> Option<String> {
    let kept = KEPT.get()?;
    let now = kept.now.lock();
    Some(now.unwrap_or_else(PoisonError::into_inner).clone())
}

/// Logs what `text` says from now on; an empty one brings back what was logged at the start. Returns what is logged.
///
/// # Errors
///
/// With the directive that is none; the log goes on as it did.
pub fn replace(text: &str) -> Result<String, FilterError> {
    let kept = KEPT.get().ok_or(FilterError::NoLog)?;
    let text = match text.trim() {
        "" => &kept.at_start,
        text => text,
    };
    let filter = parse(text)?;
    let mut now = kept.now.lock().unwrap_or_else(PoisonError::into_inner);
    // Before: a filter that lets nothing through would keep it to itself.
    tracing::info!(filter = text, before = *now, "the log's filter is changed");
    let replaced = kept.handle.reload(filter);
    replaced.map_err(|_| FilterError::NoLog)?;
    text.clone_into(&mut now);
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_is_refused_by_its_directive() {
        for good in [
            "info",
            "info,messaging=debug",
            "off",
            "messaging::pull=trace,[job]=debug",
            "info,,warn",
        ] {
            assert!(parse(good).is_ok(), "{good}");
        }
        for (bad, directive) in [
            ("messaging=loud", "messaging=loud"),
            ("info, gateway=9 ,warn", "gateway=9"),
            ("info,[{job=", "[{job="),
            ("info,gate\nway=debug", "gate\\nway=debug"),
        ] {
            let error = parse(bad).expect_err(bad).to_string();
            assert!(error.contains(&format!("`{directive}`")), "{error}");
        }
    }
}
