//! The prior model: prompts and seeds become grids of prior tokens, which the painter turns into
//! pictures. The centre of `ar`; what text and sizes mean to the ids is settled here.

use std::ops::ControlFlow;

use crate::ar::generate::{RowPrompt, generate};
use crate::ar::grid::TargetGrids;
use crate::ar::language_model::LanguageModel;
use crate::ar::sampling::Sampler;
use crate::checkpoint::{CheckReport, Checkpoint};
use crate::error::{ModelError, Result};
use crate::prior_codec::{PART, PriorCodec};
use crate::weights::{LoadOptions, Mode, PartReport, Weights};

pub use crate::ar::generate::ArProgress;
pub use crate::ar::grid::ImageSize;

/// What one row of a batch asks for.
#[derive(Debug, Clone, Copy)]
pub struct PriorRequest<'a> {
    pub prompt: &'a str,
    pub seed: u64,
}

/// What one row got.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PriorRow {
    /// Row by row, `token_h * token_w` of them, not upsampled.
    pub tokens: Vec<u16>,
    pub token_h: u32,
    pub token_w: u32,
    pub prompt_tokens: u32,
    /// Preview, grid and end together: what the model wrote.
    pub generated_tokens: u32,
}

/// The loaded language model with its tokenizer.
#[derive(Debug)]
pub struct PriorModel {
    pub(crate) codec: PriorCodec,
    pub(crate) model: LanguageModel,
    pub(crate) sampler: Sampler,
}

impl PriorModel {
    pub fn load(checkpoint: &Checkpoint, options: LoadOptions) -> Result<Self> {
        Self::build(
            checkpoint,
            LoadOptions {
                mode: Mode::Load,
                ..options
            },
        )
        .map(|(model, _)| model)
    }

    /// Verifies configs, keys and shapes, and loads nothing.
    pub fn check(checkpoint: &Checkpoint) -> Result<CheckReport> {
        let (_, report) = Self::build(checkpoint, LoadOptions::check())?;
        Ok(CheckReport {
            parts: vec![(PART.to_owned(), report)],
        })
    }

    fn build(checkpoint: &Checkpoint, options: LoadOptions) -> Result<(Self, PartReport)> {
        let codec = PriorCodec::open(checkpoint)?;
        let mut weights = Weights::open(&checkpoint.part(PART), "model", options)?;
        let model = LanguageModel::load(&codec.config, &mut weights)?;
        let report = weights.finish()?;
        let codebook = codec.config.vq_config.num_embeddings;
        let vocabulary = codec.config.text_config.vision_vocab_size;
        let sampler = Sampler::new(codec.sampling(), codebook, vocabulary)?;
        let model = Self {
            codec,
            model,
            sampler,
        };
        Ok((model, report))
    }

    /// Prior ids are below this.
    pub fn codebook_size(&self) -> u32 {
        self.codec.codebook_size()
    }

    /// Writes the tokens of all rows together; every row as it would come out alone.
    pub fn generate(
        &self,
        size: ImageSize,
        rows: &[PriorRequest<'_>],
        observe: &mut dyn FnMut(ArProgress) -> ControlFlow<()>,
    ) -> Result<Vec<PriorRow>> {
        let grids = TargetGrids::of(size)?;
        let prompts = rows
            .iter()
            .map(|row| self.prompt(*row, size))
            .collect::<Result<Vec<_>>>()?;
        let written = generate(&self.model, &self.sampler, grids, &prompts, &mut |p, _| {
            observe(p)
        })?;
        prompts
            .iter()
            .zip(written)
            .map(|(prompt, ids)| row(prompt, &ids, grids))
            .collect()
    }

    fn prompt(&self, row: PriorRequest<'_>, size: ImageSize) -> Result<RowPrompt> {
        Ok(RowPrompt {
            ids: self.codec.prompt(row.prompt, size)?.ids,
            seed: row.seed,
        })
    }
}

fn row(prompt: &RowPrompt, ids: &[i64], grids: TargetGrids) -> Result<PriorRow> {
    let large = ids
        .iter()
        .skip(grids.preview.tokens())
        .take(grids.large.tokens());
    let tokens = large
        .map(|id| u16::try_from(*id))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| ModelError::Torch("an id was drawn that the mask forbids".to_owned()))?;
    Ok(PriorRow {
        tokens,
        token_h: grids.large.h,
        token_w: grids.large.w,
        // Both are bounded by max_position_embeddings.
        prompt_tokens: prompt.ids.len() as u32,
        generated_tokens: ids.len() as u32,
    })
}
