//! Which parts of a prompt are to be written in the picture: the quoted ones.

use std::sync::LazyLock;

use regex::Regex;

/// The four kinds of quotes, in the order in which the reference (`get_glyph_texts`) concatenates their finds.
static QUOTES: LazyLock<[Regex; 4]> = LazyLock::new(|| {
    [
        r"'([^']*)'",
        r"\u{201c}([^\u{201c}\u{201d}]*)\u{201d}",
        r#""([^"]*)""#,
        r"「([^「」]*)」",
    ]
    .map(|pattern| Regex::new(pattern).expect("the pattern is a constant"))
});

/// The texts to be drawn, all in single quotes first, then all in each other kind: **not** in order of appearance.
///
/// Apostrophes count as quotes (`it's a dog's` draws `s a dog`), as in the reference: the model saw it so in
/// training.
pub(super) fn glyph_texts(prompt: &str) -> Vec<&str> {
    QUOTES
        .iter()
        .flat_map(|quote| quote.captures_iter(prompt))
        .map(|found| found.extract::<1>().1[0])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_found_kind_by_kind() {
        let table: &[(&str, &[&str])] = &[
            ("a red fox", &[]),
            ("a sign 'OPEN'", &["OPEN"]),
            ("it's a dog's life", &["s a dog"]),
            ("'a' 'b'", &["a", "b"]),
            ("\"double\" then 'single'", &["single", "double"]),
            (
                "「角」 \"d\" \u{201c}curly\u{201d} 's'",
                &["s", "curly", "d", "角"],
            ),
            (
                "\u{201c}outer \u{201c}inner\u{201d} rest\u{201d}",
                &["inner"],
            ),
            ("''", &[""]),
            ("'two\nlines'", &["two\nlines"]),
            ("'open \"x\"", &["x"]),
            ("「a「b」c」", &["b"]),
        ];
        for (prompt, texts) in table {
            assert_eq!(glyph_texts(prompt), *texts, "{prompt}");
        }
    }
}
