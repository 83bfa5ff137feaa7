//! What is wrong with a file that may hold a secret: where it is, and no word of what stands there.

use std::fmt;

/// A place in a text, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Which line.
    pub line: usize,
    /// Which character of it.
    pub column: usize,
}

impl Place {
    /// Of the byte at `offset`.
    pub fn of(text: &str, offset: usize) -> Self {
        let before = &text[..text.floor_char_boundary(offset)];
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: 1 + before.matches('\n').count(),
            column: 1 + before[start..].chars().count(),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column } = self;
        write!(f, "line {line}, column {column}")
    }
}

/// What serde says of a text, without what it quotes of it: ``unknown field `x`, expected `a` or `b` `` becomes
/// ``unknown field, expected `a` or `b` ``. What it expects are our own words, as are the names of fields that it misses.
pub fn without_values(message: &str) -> String {
    if message.starts_with("missing field ") {
        return message.to_owned();
    }
    let Some((said, _)) = message.split_once(['`', '"']) else {
        return message.to_owned();
    };
    // The last one: a value may say it too.
    let expected = message.rsplit_once(", expected ");
    let expected = expected.map_or(String::new(), |(_, what)| format!(", expected {what}"));
    format!("{}{expected}", said.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_counted_in_lines_and_characters() {
        let text = "a = 1\né = \"é\"\n";
        for (offset, line, column) in [(0, 1, 1), (5, 1, 6), (6, 2, 1), (11, 2, 5), (12, 2, 6)] {
            assert_eq!(Place::of(text, offset), Place { line, column }, "{offset}");
        }
        let end = Place { line: 3, column: 1 };
        assert_eq!(Place::of(text, 1_000), end);
    }

    #[test]
    fn a_message_keeps_what_is_ours_and_nothing_of_the_text() {
        for (message, kept) in [
            (
                "unknown field `sk-live`, expected `name` or `key_sha256`",
                "unknown field, expected `name` or `key_sha256`",
            ),
            (
                "invalid type: string \"sk-live\", expected a sequence",
                "invalid type: string, expected a sequence",
            ),
            (
                "invalid type: string \"`, expected sk-live\", expected u16",
                "invalid type: string, expected u16",
            ),
            ("invalid type: integer `17`", "invalid type: integer"),
            ("missing field `name`", "missing field `name`"),
            ("duplicate key", "duplicate key"),
        ] {
            assert_eq!(without_values(message), kept);
        }
    }
}
