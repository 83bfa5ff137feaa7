//! What a person reads: results on stdout, everything about their making on stderr. The only module that prints.

/// A line of the result.
#[expect(clippy::print_stdout, reason = "the one place that writes results")]
pub(crate) fn say(line: impl std::fmt::Display) {
    println!("{line}");
}

/// A line about what is going on.
#[expect(clippy::print_stderr, reason = "the one place that writes notices")]
pub(crate) fn note(line: impl std::fmt::Display) {
    eprintln!("fresco: {line}");
}
