//! The loop: prompts in, tokens out, all rows of a batch in step.

use std::ops::ControlFlow;

use tch::Tensor;

use crate::ar::attention::Step;
use crate::ar::cache::RowCache;
use crate::ar::grid::TargetGrids;
use crate::ar::language_model::LanguageModel;
use crate::ar::rope::{Turn, decode_positions, prefill_positions};
use crate::ar::sampling::{Place, Sampler};
use crate::error::{ModelError, Result};
use crate::rng::Generator;

/// How far a batch is: all rows write the same number of tokens, one each at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArProgress {
    /// Tokens written to each row so far, from 1.
    pub token: u32,
    pub tokens: u32,
}

/// A row before its first token.
#[derive(Debug)]
pub(crate) struct RowPrompt {
    pub(crate) ids: Vec<i64>,
    pub(crate) seed: u64,
}

/// Called after each token of the batch, with the logits it was drawn from.
pub(crate) type Observe<'a> = dyn FnMut(ArProgress, &Tensor) -> ControlFlow<()> + 'a;

/// Everything that goes on from token to token.
#[derive(Debug)]
struct Batch {
    caches: Vec<RowCache>,
    turns: Turn,
    generators: Vec<Generator>,
    /// What each row's next id is drawn from, (rows, vision vocabulary).
    logits: Tensor,
}

/// Writes the grids of every row, preview first, and one token more: (rows) lists of ids.
pub(crate) fn generate(
    model: &LanguageModel,
    sampler: &Sampler,
    grids: TargetGrids,
    rows: &[RowPrompt],
    observe: &mut Observe<'_>,
) -> Result<Vec<Vec<i64>>> {
    let mut written = vec![Vec::with_capacity(grids.tokens() + 1); rows.len()];
    if rows.is_empty() {
        return Ok(written);
    }
    let mut batch = prefill(model, grids, rows)?;
    let tokens = grids.tokens() + 1;
    for token in 0..tokens {
        let place = if token < grids.tokens() {
            Place::Grid
        } else {
            Place::End
        };
        let ids = sampler.draw(&batch.logits, place, &mut batch.generators)?;
        for (row, id) in written.iter_mut().zip(&ids) {
            row.push(*id);
        }
        // The tokens of a picture of any size that a u32 holds fit one.
        let progress = ArProgress {
            token: token as u32 + 1,
            tokens: tokens as u32,
        };
        if observe(progress, &batch.logits).is_break() {
            return Err(ModelError::Interrupted);
        }
        if token + 1 < tokens {
            // (rows, 1)
            let ids = Tensor::f_from_slice(&ids)?.f_unsqueeze(1)?;
            let turn = batch.turns.at(token as i64)?;
            let step = Step {
                turn: &turn,
                caches: &mut batch.caches,
            };
            batch.logits = model.forward(&ids, step)?;
        }
    }
    Ok(written)
}

/// Reads the prompts, each alone and unpadded: a row's numbers must not depend on its neighbours,
/// and a prompt is short beside what is written after it. The n outputs of one request share a
/// prompt, which is then read once.
fn prefill(model: &LanguageModel, grids: TargetGrids, rows: &[RowPrompt]) -> Result<Batch> {
    let mut caches: Vec<RowCache> = Vec::with_capacity(rows.len());
    let mut logits: Vec<Tensor> = Vec::with_capacity(rows.len());
    let mut turns = Vec::with_capacity(rows.len());
    for (number, row) in rows.iter().enumerate() {
        if let Some(same) = rows[..number]
            .iter()
            .position(|earlier| earlier.ids == row.ids)
        {
            caches.push(caches[same].fork()?);
            logits.push(logits[same].shallow_clone());
        } else {
            let mut cache = [model.cache(row.ids.len() + grids.tokens())?];
            let turn = model.turn(&prefill_positions(row.ids.len()))?;
            let ids = Tensor::f_from_slice(&row.ids)?.f_unsqueeze(0)?;
            logits.push(model.forward(
                &ids,
                Step {
                    turn: &turn,
                    caches: &mut cache,
                },
            )?);
            caches.extend(cache);
        }
        turns.push(model.turn(&decode_positions(row.ids.len(), grids))?);
    }
    Ok(Batch {
        caches,
        turns: Turn::stack(&turns)?,
        generators: rows
            .iter()
            .map(|row| Generator::new(row.seed))
            .collect::<Result<_>>()?,
        logits: Tensor::f_cat(&logits, 0)?,
    })
}
