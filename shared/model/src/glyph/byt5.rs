//! The ByT5 tokenizer: a text is its UTF-8 bytes. There is no vocabulary file, only the list of special tokens.

use std::collections::BTreeMap;
use std::path::Path;

use regex::Regex;
use serde::Deserialize;

use crate::config::read_part_config;
use crate::error::{ModelError, Result};

/// Ids 0, 1, 2 are pad, end and unknown; the bytes follow (`ByT5Tokenizer.offset`).
const BYTE_OFFSET: i64 = 3;
pub(super) const PAD_ID: i64 = 0;
const END_ID: i64 = 1;
/// Longest token sequence of one text, end included (`max_sequence_length` of the reference pipeline).
const TOKENS_MAX: usize = 2048;

/// Turns texts into ids as `ByT5Tokenizer` of transformers does, special tokens written out in a text included.
#[derive(Debug)]
pub(super) struct Byt5Tokenizer {
    specials: BTreeMap<String, Special>,
    /// Matches any special token, longest first.
    pattern: Regex,
}

#[derive(Clone, Copy, Debug)]
struct Special {
    id: i64,
    strips_left: bool,
    strips_right: bool,
}

impl Byt5Tokenizer {
    /// Reads `tokenizer/tokenizer_config.json`; `vocab_size` is the text encoder's.
    ///
    /// # Errors
    ///
    /// A file that is missing or of another tokenizer, or an id the text encoder has no row for.
    pub(super) fn read(path: &Path, vocab_size: i64) -> Result<Self> {
        let file: TokenizerFile = read_part_config(path, "tokenizer_class", "ByT5Tokenizer")?;
        let mut specials = BTreeMap::new();
        for (id, token) in file.added_tokens_decoder {
            if token.content.is_empty() || !(0..vocab_size).contains(&id) {
                let problem = format!("is {:?}, which has no embedding row", token.content);
                return Err(ModelError::config(
                    path,
                    format!("added_tokens_decoder.{id}"),
                    problem,
                ));
            }
            let special = Special {
                id,
                strips_left: token.lstrip,
                strips_right: token.rstrip,
            };
            specials.insert(token.content, special);
        }
        Ok(Self {
            pattern: any_of(specials.keys()),
            specials,
        })
    }

    /// Ids of one text, the end token last; at most [`TOKENS_MAX`].
    pub(super) fn ids(&self, text: &str) -> Vec<i64> {
        let mut ids = Vec::with_capacity(text.len() + 1);
        let mut rest = text;
        let mut strip_next = false;
        loop {
            let found = self.pattern.find(rest);
            let (plain, after) = match found {
                Some(found) => (&rest[..found.start()], &rest[found.end()..]),
                None => (rest, ""),
            };
            let special = found.and_then(|found| self.specials.get(found.as_str()));
            let plain = if strip_next {
                plain.trim_start_matches(is_space)
            } else {
                plain
            };
            let strip_this = special.is_some_and(|special| special.strips_left);
            let plain = if strip_this {
                plain.trim_end_matches(is_space)
            } else {
                plain
            };
            ids.extend(plain.bytes().map(|byte| i64::from(byte) + BYTE_OFFSET));
            let Some(special) = special else { break };
            ids.push(special.id);
            strip_next = special.strips_right;
            rest = after;
        }
        ids.truncate(TOKENS_MAX - 1);
        if ids.last() != Some(&END_ID) {
            ids.push(END_ID);
        }
        ids
    }
}

fn any_of<'a>(tokens: impl Iterator<Item = &'a String>) -> Regex {
    let mut escaped: Vec<String> = tokens.map(|token| regex::escape(token)).collect();
    escaped.sort_by_key(|token| std::cmp::Reverse(token.len()));
    // With no special tokens the pattern must find nothing, not the empty string.
    let pattern = if escaped.is_empty() {
        r"[^\s\S]".to_owned()
    } else {
        escaped.join("|")
    };
    Regex::new(&pattern).expect("escaped literals are a pattern")
}

/// What Python's `str.strip` strips: Unicode white space and the four information separators.
fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

#[derive(Deserialize)]
struct TokenizerFile {
    added_tokens_decoder: BTreeMap<i64, AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokenizer() -> Byt5Tokenizer {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/data/tiny/tokenizer/tokenizer_config.json");
        Byt5Tokenizer::read(&path, 384).unwrap()
    }

    /// Expected ids printed by transformers 5.24.0.
    #[test]
    fn texts_become_the_ids_of_the_reference_tokenizer() {
        let table: &[(&str, &[i64])] = &[
            ("", &[1]),
            ("ab", &[100, 101, 1]),
            ("a <pad> b", &[100, 0, 101, 1]),
            ("x</s>", &[123, 1]),
            ("a  <unk>\u{3000}b", &[100, 2, 101, 1]),
            ("q<extra_id_0> z", &[116, 259, 35, 125, 1]),
            ("<extra_id_12>", &[271, 1]),
            ("<extra_id_124>", &[383, 1]),
            (
                "<extra_id_125>",
                &[
                    63, 104, 123, 119, 117, 100, 98, 108, 103, 98, 52, 53, 56, 65, 1,
                ],
            ),
            ("<pad></s>", &[0, 1]),
            ("é\u{2028} <pad>", &[198, 172, 0, 1]),
            ("a <pad> <pad> b", &[100, 0, 0, 101, 1]),
            ("</s", &[63, 50, 118, 1]),
            ("<<pad>", &[63, 0, 1]),
            ("\u{1c} <pad>", &[0, 1]),
        ];
        let tokenizer = tokenizer();
        for (text, ids) in table {
            assert_eq!(tokenizer.ids(text), *ids, "{text:?}");
        }
    }

    #[test]
    fn long_texts_are_cut_to_2048_ids_with_the_end_kept() {
        let ids = tokenizer().ids(&"é".repeat(2000));

        assert_eq!(ids.len(), 2048);
        assert_eq!(ids[2045..], [172, 198, 1]);
    }

    #[test]
    fn an_id_without_an_embedding_row_is_refused() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../tests/data/tiny/tokenizer/tokenizer_config.json");
        let error = Byt5Tokenizer::read(&path, 383).unwrap_err();
        assert!(
            error.to_string().contains("added_tokens_decoder.383"),
            "{error}"
        );
    }
}
