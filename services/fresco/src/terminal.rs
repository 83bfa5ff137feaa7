//! What a person reads: results on stdout, everything about their making on stderr. The only module that prints.
//!
//! Nobody reading is no failure: `fresco up | head -1` must not take a fleet down.

use std::io::{self, Write};

/// A line of the result.
pub(crate) fn say(line: impl std::fmt::Display) {
    writeln!(io::stdout(), "{line}").ok();
}

/// A line about what is going on.
pub(crate) fn note(line: impl std::fmt::Display) {
    writeln!(io::stderr(), "fresco: {line}").ok();
}
