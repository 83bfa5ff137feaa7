//! The glyph encoder: turns the quoted texts of a prompt into embeddings that tell the DiT which letters to draw.
//!
//! It never sees the rest of the prompt; that steers the picture through the prior tokens only.

mod byt5;
mod t5;
mod texts;

use std::cell::OnceCell;

use tch::Tensor;

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::weights::{LoadOptions, PartReport};

use byt5::{Byt5Tokenizer, PAD_ID};
use t5::T5Encoder;

/// ByT5 tokenizer and T5 encoder.
#[derive(Debug)]
pub(crate) struct GlyphEncoder {
    tokenizer: Byt5Tokenizer,
    encoder: T5Encoder,
    /// Embedding of no text at all: a constant of the weights, and what most prompts and every unconditional
    /// forward use. Filled on first use.
    empty: OnceCell<Tensor>,
}

impl GlyphEncoder {
    /// Reads the folders `text_encoder` and `tokenizer`.
    ///
    /// # Errors
    ///
    /// Files that are missing, truncated, of another model or with settings that this encoder does not compute.
    pub(crate) fn load(
        checkpoint: &Checkpoint,
        options: LoadOptions,
    ) -> Result<(Self, PartReport)> {
        let (encoder, report) = T5Encoder::load(&checkpoint.part("text_encoder"), options)?;
        let tokenizer_config = checkpoint.part("tokenizer").join("tokenizer_config.json");
        let tokenizer = Byt5Tokenizer::read(&tokenizer_config, encoder.vocab_size())?;
        Ok((
            Self {
                tokenizer,
                encoder,
                empty: OnceCell::new(),
            },
            report,
        ))
    }

    /// Width of an embedding.
    pub(crate) fn width(&self) -> i64 {
        self.encoder.width()
    }

    /// Embeddings of all quoted texts of the prompt, one after the other: (1, tokens, width), in the dtype of the
    /// weights. A prompt without quotes gives (1, 1, width).
    ///
    /// # Errors
    ///
    /// What libtorch reports.
    pub(crate) fn encode(&self, prompt: &str) -> Result<Tensor> {
        let texts = texts::glyph_texts(prompt);
        if texts.is_empty() {
            self.empty()
        } else {
            self.encode_texts(&texts)
        }
    }

    /// Embedding of the empty text: (1, 1, width). The unconditional forward of guidance gets it.
    ///
    /// # Errors
    ///
    /// What libtorch reports.
    pub(crate) fn empty(&self) -> Result<Tensor> {
        if let Some(empty) = self.empty.get() {
            return Ok(empty.shallow_clone());
        }
        let empty = self.encode_texts(&[""])?;
        Ok(self.empty.get_or_init(|| empty).shallow_clone())
    }

    fn encode_texts(&self, texts: &[&str]) -> Result<Tensor> {
        let batches = TokenBatch::of(token_rows(texts, &self.tokenizer));
        let parts = batches.iter().map(|batch| self.encode_batch(batch));
        // (1, sum of lengths, width)
        Ok(Tensor::f_cat(&parts.collect::<Result<Vec<_>>>()?, 1)?)
    }

    fn encode_batch(&self, batch: &TokenBatch) -> Result<Tensor> {
        let size = [batch.rows, batch.row_len];
        // (texts, longest)
        let ids = Tensor::f_from_slice(&batch.ids)?.f_reshape(size)?;
        let mask = Tensor::f_from_slice(&batch.mask)?.f_reshape(size)?;
        let hidden = self
            .encoder
            .forward(&ids, batch.has_padding().then_some(&mask))?;
        let kept: Vec<i64> = (0i64..)
            .zip(&batch.mask)
            .filter(|(_, kept)| **kept)
            .map(|(at, _)| at)
            .collect();
        let kept = Tensor::f_from_slice(&kept)?.f_to_device(self.encoder.device())?;
        // (texts, longest, width) → (1, sum of lengths, width)
        Ok(hidden
            .f_flatten(0, 1)?
            .f_index_select(0, &kept)?
            .f_unsqueeze(0)?)
    }
}

/// Largest batch of texts, in attention scores of one head: texts x longest². The one longest text there can be has
/// 2048² of them, 100 MB over the published six heads; a hundred short texts beside a long one would have a hundred
/// times that.
const BATCH_SCORES_MAX: usize = 2048 * 2048;

/// The token ids of each text.
fn token_rows(texts: &[&str], tokenizer: &Byt5Tokenizer) -> Vec<Vec<i64>> {
    // A quirk of the reference: an even number of texts gets one pad in front of each, and those pads count
    // as text. (It means to make lengths even, but takes the number of texts for the length.)
    let front = if texts.len().is_multiple_of(2) {
        &[PAD_ID][..]
    } else {
        &[]
    };
    texts
        .iter()
        .map(|text| [front, &tokenizer.ids(text)].concat())
        .collect()
}

/// Ids of several texts, right-padded to the longest.
#[derive(Debug, PartialEq)]
struct TokenBatch {
    rows: i64,
    row_len: i64,
    ids: Vec<i64>,
    /// False on padding.
    mask: Vec<bool>,
}

impl TokenBatch {
    /// All rows in one batch, as the reference has them, or each alone where that batch would be too large. A row is
    /// masked from its padding, so it comes out the same to the last bits.
    fn of(rows: Vec<Vec<i64>>) -> Vec<Self> {
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        if rows.len() * longest * longest <= BATCH_SCORES_MAX {
            vec![Self::new(rows)]
        } else {
            rows.into_iter().map(|row| Self::new(vec![row])).collect()
        }
    }

    fn new(rows: Vec<Vec<i64>>) -> Self {
        let row_len = rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut batch = Self {
            rows: rows.len() as i64,
            row_len: row_len as i64,
            ids: Vec::with_capacity(rows.len() * row_len),
            mask: Vec::with_capacity(rows.len() * row_len),
        };
        for row in rows {
            let padding = row_len - row.len();
            batch.mask.extend((0..row_len).map(|at| at < row.len()));
            batch.ids.extend(row);
            batch.ids.extend(std::iter::repeat_n(PAD_ID, padding));
        }
        batch
    }

    fn has_padding(&self) -> bool {
        self.mask.contains(&false)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::goldens::{self, LATENTS_ATOL, Tensors, assert_close};

    #[derive(Deserialize)]
    struct Row {
        prompt: String,
        glyph_texts: Vec<String>,
        token_ids: Vec<Vec<i64>>,
        input_ids: Vec<Vec<i64>>,
        attention_mask: Vec<Vec<i64>>,
        embeds_length: i64,
    }

    fn encoder() -> GlyphEncoder {
        GlyphEncoder::load(&goldens::tiny(), goldens::cpu_f32())
            .unwrap()
            .0
    }

    #[test]
    fn texts_ids_and_masks_equal_the_reference() {
        let encoder = encoder();
        for row in goldens::json::<Vec<Row>>("glyph.json") {
            let mut texts = texts::glyph_texts(&row.prompt);
            assert_eq!(texts, row.glyph_texts, "{}", row.prompt);
            if texts.is_empty() {
                texts.push("");
            }
            let token_ids: Vec<Vec<i64>> = texts
                .iter()
                .map(|text| encoder.tokenizer.ids(text))
                .collect();
            assert_eq!(token_ids, row.token_ids, "{}", row.prompt);
            let batch = TokenBatch::new(token_rows(&texts, &encoder.tokenizer));
            assert_eq!(batch.rows, row.input_ids.len() as i64, "{}", row.prompt);
            assert_eq!(batch.ids, row.input_ids.concat(), "{}", row.prompt);
            let mask: Vec<i64> = batch.mask.iter().map(|kept| i64::from(*kept)).collect();
            assert_eq!(mask, row.attention_mask.concat(), "{}", row.prompt);
        }
    }

    #[test]
    fn prompt_embeddings_equal_the_reference_a50() {
        let encoder = encoder();
        let embeds = Tensors::read("glyph.safetensors");
        let rows = goldens::json::<Vec<Row>>("glyph.json");
        for (index, row) in rows
            .iter()
            .enumerate()
            .filter(|(_, row)| row.embeds_length <= 256)
        {
            let found = encoder.encode(&row.prompt).unwrap();
            assert_eq!(found.size()[1], row.embeds_length, "{}", row.prompt);
            let expected = embeds.get(&format!("prompt_embeds.{index}"));
            assert_close(&row.prompt, &found, expected, LATENTS_ATOL);
        }
    }

    #[test]
    fn many_texts_beside_a_long_one_are_encoded_alone_and_equal() {
        let encoder = encoder();
        let (long, short) = (
            "a".repeat(300),
            ["b"; 60].map(|text| format!("'{text}'")).join(" "),
        );
        let rows = token_rows(
            &texts::glyph_texts(&format!("'{long}' {short}")),
            &encoder.tokenizer,
        );
        let alone = TokenBatch::of(rows.clone());
        assert_eq!(alone.len(), 61);
        let alone: Vec<_> = alone
            .iter()
            .map(|batch| encoder.encode_batch(batch).unwrap())
            .collect();
        let together = encoder.encode_batch(&TokenBatch::new(rows)).unwrap();
        assert_close("alone", &Tensor::cat(&alone, 1), &together, LATENTS_ATOL);
    }

    #[test]
    fn the_longest_text_encodes_to_2048_tokens() {
        let prompt = format!("'{}'", "é".repeat(5000));
        assert_eq!(encoder().encode(&prompt).unwrap().size(), [1, 2048, 64]);
    }

    #[test]
    fn a_prompt_without_quotes_is_the_empty_embedding() {
        let encoder = encoder();
        let empty = encoder.empty().unwrap();
        assert_eq!(empty.size(), [1, 1, encoder.width()]);
        assert_eq!(encoder.encode("no quotes").unwrap(), empty);
    }
}
