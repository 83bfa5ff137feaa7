//! From logits to an id: what may stand at the position, then the warpers, then the draw.
//! All of it on the CPU in f32, so that one seed draws the same ids whatever the device.

use tch::{Kind, Tensor};

use crate::ar::generation_config::{Draw, SamplingConfig, Warpers};
use crate::error::Result;
use crate::rng::Generator;

/// Where in the answer an id will stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In one of the grids: only the codebook's ids name something there.
    Grid,
    /// Behind the grids, where a trained model ends the answer. The reference leaves this id
    /// free and drops it, whatever it is; so does this.
    End,
}

/// Draws ids for the rows of a batch.
#[derive(Debug)]
pub(crate) struct Sampler {
    draw: Draw,
    /// True where an id may not be drawn, (1, vision vocabulary).
    forbidden_in_grid: Tensor,
    forbidden_at_end: Tensor,
}

impl Sampler {
    pub(crate) fn new(config: &SamplingConfig, codebook: i64, vocabulary: i64) -> Result<Self> {
        let mask = |allowed: i64| -> Result<Tensor> {
            let forbidden: Vec<bool> = (0..vocabulary)
                .map(|id| id >= allowed || config.suppressed.contains(&id))
                .collect();
            Ok(Tensor::f_from_slice(&forbidden)?.f_view([1, vocabulary])?)
        };
        Ok(Self {
            draw: config.draw,
            forbidden_in_grid: mask(codebook)?,
            forbidden_at_end: mask(vocabulary)?,
        })
    }

    /// One id a row from logits (rows, vision vocabulary); each row draws from its own generator.
    pub(crate) fn draw(
        &self,
        logits: &Tensor,
        place: Place,
        generators: &mut [Generator],
    ) -> Result<Vec<i64>> {
        let scores = self.scores(logits, place)?;
        if self.draw == Draw::Greedy {
            let ids = scores.f_argmax(-1, false)?;
            return (0..logits.size()[0])
                .map(|row| Ok(ids.f_int64_value(&[row])?))
                .collect();
        }
        let probabilities = scores.f_softmax(-1, Kind::Float)?;
        (0..)
            .zip(generators)
            .map(|(row, generator)| {
                let id = generator.multinomial(&probabilities.f_narrow(0, row, 1)?)?;
                Ok(id.f_int64_value(&[0, 0])?)
            })
            .collect()
    }

    /// The logits after masking and warping, with minus infinity for what cannot be drawn.
    pub(crate) fn scores(&self, logits: &Tensor, place: Place) -> Result<Tensor> {
        let forbidden = match place {
            Place::Grid => &self.forbidden_in_grid,
            Place::End => &self.forbidden_at_end,
        };
        // Before the warpers, as transformers suppresses ids: top-k and top-p then share out all
        // of the probability among ids that can be drawn.
        let scores = logits.f_masked_fill(forbidden, f64::NEG_INFINITY)?;
        match self.draw {
            Draw::Greedy => Ok(scores),
            Draw::Sample(warpers) => warpers.apply(scores),
        }
    }
}

impl Warpers {
    fn apply(self, scores: Tensor) -> Result<Tensor> {
        let mut scores = scores;
        if self.temperature != 1.0 {
            scores = scores.f_div_scalar(self.temperature)?;
        }
        if let Some(top_k) = self.top_k {
            scores = keep_top_k(&scores, top_k)?;
        }
        if let Some(top_p) = self.top_p {
            scores = keep_top_p(&scores, top_p)?;
        }
        Ok(scores)
    }
}

/// Ids as likely as the k-th are kept with it.
fn keep_top_k(scores: &Tensor, top_k: i64) -> Result<Tensor> {
    let top_k = top_k.min(*scores.size().last().unwrap_or(&1));
    let (top, _) = scores.f_topk(top_k, -1, true, true)?;
    let least = top.f_narrow(-1, top_k - 1, 1)?;
    Ok(scores.f_masked_fill(&scores.f_lt_tensor(&least)?, f64::NEG_INFINITY)?)
}

/// Drops the unlikeliest ids whose probabilities sum to no more than 1 - p; the likeliest stays.
fn keep_top_p(scores: &Tensor, top_p: f64) -> Result<Tensor> {
    let (sorted, order) = scores.f_sort(-1, false)?;
    let sums = sorted
        .f_softmax(-1, Kind::Float)?
        .f_cumsum(-1, Kind::Float)?;
    let dropped = sums.f_le(1.0 - top_p)?;
    let width = *dropped.size().last().unwrap_or(&1);
    // A view: this clears the last column of `dropped`.
    drop(dropped.f_narrow(-1, width - 1, 1)?.f_fill_(0)?);
    let dropped = dropped.f_scatter(1, &order, &dropped)?;
    Ok(scores.f_masked_fill(&dropped, f64::NEG_INFINITY)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(draw: Draw) -> Sampler {
        // A codebook of 4 in a vocabulary of 6; id 1 is suppressed.
        Sampler::new(
            &SamplingConfig {
                draw,
                suppressed: vec![1],
            },
            4,
            6,
        )
        .expect("a sampler")
    }

    fn kept(scores: &Tensor) -> Vec<i64> {
        let finite = Vec::<f32>::try_from(scores.flatten(0, -1)).expect("floats");
        (0..)
            .zip(finite)
            .filter(|(_, score)| score.is_finite())
            .map(|(id, _)| id)
            .collect()
    }

    fn row(logits: [f32; 6]) -> Tensor {
        Tensor::from_slice(&logits).view([1, 6])
    }

    #[test]
    fn only_the_codebook_may_stand_in_the_grid_a43() {
        let logits = row([0.0, 9.0, 1.0, 2.0, 8.0, 7.0]);
        let sampler = sampler(Draw::Greedy);
        assert_eq!(
            sampler.draw(&logits, Place::Grid, &mut []).expect("an id"),
            [3]
        );
        assert_eq!(
            sampler.draw(&logits, Place::End, &mut []).expect("an id"),
            [4]
        );
    }

    #[test]
    fn the_mask_comes_before_the_warpers() {
        let warpers = Warpers {
            temperature: 1.0,
            top_k: Some(2),
            top_p: None,
        };
        let logits = row([0.0, 9.0, 1.0, 2.0, 8.0, 7.0]);
        let scores = sampler(Draw::Sample(warpers))
            .scores(&logits, Place::Grid)
            .expect("scores");
        assert_eq!(kept(&scores), [2, 3]);
    }

    #[test]
    fn top_p_keeps_the_id_that_crosses_the_threshold_and_always_the_top_one() {
        // Probabilities of about 0.64, 0.24, 0.09, 0.03.
        let logits = Tensor::from_slice(&[3.0f32, 2.0, 1.0, 0.0]).view([1, 4]);
        for (top_p, want) in [
            (0.0, vec![0]),
            (0.5, vec![0]),
            (0.7, vec![0, 1]),
            (0.9, vec![0, 1, 2]),
        ] {
            assert_eq!(
                kept(&keep_top_p(&logits, top_p).expect("scores")),
                want,
                "{top_p}"
            );
        }
    }

    #[test]
    fn top_k_beyond_the_vocabulary_keeps_all() {
        let scores = keep_top_k(&row([0.0; 6]), 50).expect("scores");
        assert_eq!(kept(&scores).len(), 6);
    }
}
