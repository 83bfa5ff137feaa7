//! From a prompt to the ids that the language model reads: chat template, target sizes, tokenizer.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::{AddedToken, Tokenizer};

use crate::ar::config::ArConfig;
use crate::ar::grid::TargetGrids;
use crate::config::read_json;
use crate::error::{ModelError, Result};
use crate::template::{ChatTemplate, named_tokens};

/// Prompts into ids.
#[derive(Debug)]
pub(crate) struct PromptTokenizer {
    path: PathBuf,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    grid_start: String,
    grid_end: String,
    image_start: String,
    /// Ids that stand for pictures in the prompt. Written out in a text-to-image prompt they would
    /// shift every position after them, so such a prompt is refused.
    picture_ids: [u32; 2],
}

impl PromptTokenizer {
    /// Reads the checkpoint's `processor` folder; `config` must mean the same ids by the same
    /// tokens.
    pub(crate) fn open(processor: &Path, config: &ArConfig) -> Result<Self> {
        let path = processor.join("tokenizer.json");
        let config_path = processor.join("tokenizer_config.json");
        let tokenizer_config: Map<String, Value> = read_json(&config_path)?;
        let mut tokenizer = Tokenizer::from_file(&path).map_err(|error| ModelError::Tokenizer {
            path: path.clone(),
            problem: error.to_string(),
        })?;
        add_named_tokens(&mut tokenizer, &tokenizer_config, &config_path)?;
        let named = |name: &str| {
            let mut tokens = named_tokens(&tokenizer_config);
            let token = tokens
                .find(|(found, _)| *found == name)
                .map(|(_, token)| token.to_owned());
            token.ok_or_else(|| ModelError::config(&config_path, name, "is missing"))
        };
        let expect_id = |name: &str, id: i64| -> Result<u32> {
            let found = tokenizer.token_to_id(&named(name)?).unwrap_or_default();
            if i64::from(found) == id {
                return Ok(found);
            }
            Err(ModelError::config(
                &config_path,
                name,
                format!("is id {found}, need {id}"),
            ))
        };
        expect_id("bos_token", config.image_start_token_id)?;
        let picture_ids = [
            expect_id("image_token", config.image_token_id)?,
            expect_id("eos_token", config.image_end_token_id)?,
        ];
        Ok(Self {
            grid_start: named("grid_bos_token")?,
            grid_end: named("grid_eos_token")?,
            image_start: named("bos_token")?,
            template: ChatTemplate::open(processor, &tokenizer_config)?,
            path,
            tokenizer,
            picture_ids,
        })
    }

    /// The text that is tokenized: the rendered prompt, the sizes of both grids, the start token.
    pub(crate) fn expand(&self, prompt: &str, grids: TargetGrids) -> Result<String> {
        let Self {
            grid_start,
            grid_end,
            image_start,
            ..
        } = self;
        let mut text = self.template.render(prompt)?;
        for grid in [grids.large, grids.preview] {
            text.push_str(&format!("{grid_start}{} {}{grid_end}", grid.h, grid.w));
        }
        text.push_str(image_start);
        Ok(text)
    }

    /// The ids of an expanded text.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<i64>> {
        // transformers adds special tokens unless the text brings its own start token.
        let add_special_tokens = !text.starts_with(&self.image_start);
        let encoding = self
            .tokenizer
            .encode_fast(text, add_special_tokens)
            .map_err(|error| ModelError::Tokenizer {
                path: self.path.clone(),
                problem: error.to_string(),
            })?;
        let ids = encoding.get_ids();
        if ids.iter().any(|id| self.picture_ids.contains(id)) {
            let problem = "holds a token that stands for a picture";
            return Err(ModelError::request("prompt", problem));
        }
        Ok(ids.iter().map(|id| i64::from(*id)).collect())
    }
}

/// The published tokenizer.json has `<|dit_token_16384|>` and its like as plain vocabulary, which
/// byte-level BPE would cut into pieces. They are one token each because transformers adds every
/// token that the config names to the special ones; the ids stay those of the vocabulary.
fn add_named_tokens(
    tokenizer: &mut Tokenizer,
    config: &Map<String, Value>,
    config_path: &Path,
) -> Result<()> {
    let mut tokens = Vec::new();
    for (name, token) in named_tokens(config) {
        if tokenizer.token_to_id(token).is_none() {
            let problem = format!("is {token}, which tokenizer.json does not have");
            return Err(ModelError::config(config_path, name, problem));
        }
        tokens.push(AddedToken::from(token, true).normalized(false));
    }
    tokenizer
        .add_special_tokens(tokens)
        .map_err(|error| ModelError::Tokenizer {
            path: config_path.to_owned(),
            problem: error.to_string(),
        })?;
    Ok(())
}
