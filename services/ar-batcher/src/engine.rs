//! The seam between forming batches and running them: plain types, no queue on one side, no tensor on the other.

use std::sync::Arc;

use futures::future::BoxFuture;
use protocol::{
    ImageSize, JobError, JobId, OutputId, OutputIndex, PriorTokens, PriorUsage, Seed,
    limits::SIDE_PIXELS_MULTIPLE,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// One output to write prior tokens for.
#[derive(Clone)]
pub struct PriorRow {
    /// Whose.
    pub output: OutputId,
    /// As the client wrote it. Shared by the outputs of a request.
    pub prompt: Arc<str>,
    /// Seed of this row's own generator.
    pub seed: Seed,
}

/// Rows that run together; all of one size.
pub struct PriorBatch {
    /// In pixels.
    pub size: ImageSize,
    /// At least one.
    pub rows: Vec<PriorRow>,
}

/// How far a batch is, in tokens of each of its rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BatchProgress {
    /// Written.
    pub tokens: u32,
    /// In all.
    pub tokens_max: u32,
}

/// What an engine wrote for one row.
#[derive(Debug, Clone)]
pub struct Prior {
    /// The large grid.
    pub tokens: PriorTokens,
    /// What it took.
    pub usage: PriorUsage,
}

/// A row's prior, or why it has none. A failure is its own row's only.
pub type RowOutcome = Result<Prior, JobError>;

/// Why a batch has no outcomes at all.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// It was asked to stop.
    #[error("the batch was stopped")]
    Stopped,
    /// It takes no more rows now. Nothing is wrong with these, and none of them ran.
    #[error("the AR engine is full")]
    Full,
    /// It cannot run anything any more: the process has to end.
    #[error("the AR engine is gone")]
    Gone(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Runs batches. Implementations: [`crate::native::NativeEngine`] on libtorch, [`crate::replay::ReplayEngine`], and
/// [`crate::srt::SrtEngine`] over HTTP, which is why a batch is a future and not a call.
pub trait PriorEngine: Send + Sync + 'static {
    /// Valid token ids are below this.
    fn codebook_size(&self) -> u32;

    /// Which model this is: equal for workers that write alike.
    fn revision(&self) -> String;

    /// One outcome per row, in the order of the rows. Stops early once `stop` is cancelled.
    fn run(
        &self,
        batch: PriorBatch,
        progress: watch::Sender<BatchProgress>,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Vec<RowOutcome>, EngineError>>;

    /// Writes the prior of the smallest picture, for nobody: whether the device still works. The inner error is a
    /// device that computes wrong, the outer one a device that is gone; one that hangs is the caller's to give up.
    fn self_test(&self) -> BoxFuture<'static, Result<Result<(), JobError>, EngineError>> {
        let (batch, codebook_size) = (self_test_batch(), self.codebook_size());
        let (size, rows) = (batch.size, batch.rows.len());
        let progress = watch::Sender::new(BatchProgress::default());
        let outcomes = self.run(batch, progress, CancellationToken::new());
        Box::pin(async move {
            let outcomes = checked(size, rows, outcomes.await?, codebook_size);
            Ok(outcomes
                .into_iter()
                .try_for_each(|outcome| outcome.map(drop)))
        })
    }
}

/// One row with the empty prompt, which no client can send.
fn self_test_batch() -> PriorBatch {
    let row = PriorRow {
        output: JobId::from_u128(0).output(OutputIndex::new(0).expect("0 is an index")),
        prompt: "".into(),
        seed: Seed::new(0).expect("0 is a seed"),
    };
    PriorBatch {
        size: ImageSize::new(SIDE_PIXELS_MULTIPLE, SIDE_PIXELS_MULTIPLE)
            .expect("a multiple of itself"),
        rows: vec![row],
    }
}

/// What every engine's answer is held to, whoever wrote it: one outcome per row, a grid that fits the size, ids in
/// the codebook. A grid that is wrong would crash a denoiser, or worse, paint something else.
pub(crate) fn checked(
    size: ImageSize,
    rows: usize,
    outcomes: Vec<RowOutcome>,
    codebook_size: u32,
) -> Vec<RowOutcome> {
    use protocol::ErrorCode::PriorTokensInvalid;
    if outcomes.len() != rows {
        let text = format!("the AR engine answered {} rows of {rows}", outcomes.len());
        return (0..rows)
            .map(|_| Err(JobError::new(PriorTokensInvalid, &text)))
            .collect();
    }
    let check = |outcome: RowOutcome| {
        let prior = outcome?;
        if !prior.tokens.fits(size) {
            let (rows, columns) = (prior.tokens.rows(), prior.tokens.columns());
            let text =
                format!("the AR engine wrote a grid of {rows} x {columns} for a picture of {size}");
            return Err(JobError::new(PriorTokensInvalid, &text));
        }
        match prior
            .tokens
            .ids()
            .iter()
            .find(|id| u32::from(**id) >= codebook_size)
        {
            Some(id) => {
                let text =
                    format!("the AR engine wrote id {id}, the codebook ends at {codebook_size}");
                Err(JobError::new(PriorTokensInvalid, &text))
            }
            None => Ok(prior),
        }
    };
    outcomes.into_iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use protocol::ErrorCode;

    use super::*;

    fn prior(rows: u16, columns: u16, id: u16) -> RowOutcome {
        let ids = vec![id; usize::from(rows) * usize::from(columns)];
        let tokens = PriorTokens::new(rows, columns, ids).expect("fills the grid");
        Ok(Prior {
            tokens,
            usage: PriorUsage {
                prompt_tokens: 1,
                generated_tokens: 1,
                cached: false,
            },
        })
    }

    fn code(outcome: &RowOutcome) -> Option<ErrorCode> {
        outcome.as_ref().err().map(|error| error.code)
    }

    #[test]
    fn a_bad_row_fails_alone() {
        let size = ImageSize::new(64, 32).expect("multiples of 32");
        let outcomes = vec![prior(1, 2, 511), prior(2, 1, 0), prior(1, 2, 512)];
        let checked = checked(size, 3, outcomes, 512);
        let codes: Vec<_> = checked.iter().map(code).collect();
        assert_eq!(
            codes,
            [
                None,
                Some(ErrorCode::PriorTokensInvalid),
                Some(ErrorCode::PriorTokensInvalid)
            ]
        );
    }

    #[test]
    fn a_wrong_number_of_rows_fails_them_all() {
        let size = ImageSize::new(32, 32).expect("multiples of 32");
        let checked = checked(size, 2, vec![prior(1, 1, 0)], 512);
        assert_eq!(checked.iter().filter_map(code).count(), 2);
    }
}
