//! What goes into the language model and what comes out of it, without the model: prompts into ids, ids into prior
//! tokens. For [`PriorModel`](crate::PriorModel), and for whoever lets another process run the weights.

use crate::ar::config::ArConfig;
use crate::ar::generation_config::SamplingConfig;
use crate::ar::grid::{ImageSize, TargetGrids};
use crate::checkpoint::Checkpoint;
use crate::error::{ModelError, Result};
use crate::tokenizer::PromptTokenizer;

/// The part of the checkpoint, as its folder is called.
pub(crate) const PART: &str = "vision_language_encoder";

/// A prompt for a picture of one size, as the language model reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorPrompt {
    /// Chat template, sizes of both grids and start token.
    pub ids: Vec<i64>,
    /// What the model is to write.
    pub grids: TargetGrids,
}

/// The checkpoint's tokenizer, template and configs; none of its weights.
#[derive(Debug)]
pub struct PriorCodec {
    pub(crate) tokenizer: PromptTokenizer,
    pub(crate) config: ArConfig,
    sampling: SamplingConfig,
}

impl PriorCodec {
    /// Reads the checkpoint's `processor` folder and the configs of its language model.
    ///
    /// # Errors
    ///
    /// A file that is missing or says what cannot be carried out, by name.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self> {
        let dir = checkpoint.part(PART);
        let config = ArConfig::read(&dir.join("config.json"))?;
        let sampling = SamplingConfig::read(&dir.join("generation_config.json"))?;
        let tokenizer = PromptTokenizer::open(&checkpoint.part("processor"), &config)?;
        Ok(Self {
            tokenizer,
            config,
            sampling,
        })
    }

    /// Prior ids are below this.
    pub fn codebook_size(&self) -> u32 {
        u32::try_from(self.config.vq_config.num_embeddings).unwrap_or(u32::MAX)
    }

    /// How the checkpoint wants its ids drawn.
    pub fn sampling(&self) -> &SamplingConfig {
        &self.sampling
    }

    /// `prompt` as the model reads it for a picture of `size`.
    ///
    /// # Errors
    ///
    /// A size that the model cannot paint; a prompt that is too long, or holds a token that stands for a picture.
    pub fn prompt(&self, prompt: &str, size: ImageSize) -> Result<PriorPrompt> {
        let grids = TargetGrids::of(size)?;
        let ids = self
            .tokenizer
            .encode(&self.tokenizer.expand(prompt, grids)?)?;
        let (tokens, tokens_max) = (
            ids.len() + grids.tokens(),
            self.config.text_config.max_position_embeddings,
        );
        if tokens > tokens_max {
            let problem = format!("and picture need {tokens} tokens of {tokens_max}");
            return Err(ModelError::request("prompt", problem));
        }
        Ok(PriorPrompt { ids, grids })
    }
}
