//! Our own AR model on libtorch, on its device thread.

use std::ops::ControlFlow;

use futures::future::BoxFuture;
use model::{
    ArProgress, Checkpoint, ImageSize as ModelSize, LoadOptions, ModelError, PriorModel,
    PriorRequest,
};
use protocol::{ErrorCode, ImageSize, JobError, PriorTokens, PriorUsage};
use service::{DeviceThread, ModelArgs, exit::Failure};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::engine::{
    BatchProgress, EngineError, Prior, PriorBatch, PriorEngine, PriorRow, RowOutcome,
};

/// The native engine: batches rows of equal size, one batch at a time.
pub struct NativeEngine {
    device: DeviceThread<PriorModel>,
    codebook_size: u32,
    revision: String,
}

impl NativeEngine {
    /// Loads the model on a thread of its own.
    pub async fn load(args: ModelArgs) -> Result<Self, Failure> {
        let (tell, revision) = oneshot::channel();
        let build = move || {
            model::set_threads(args.threads);
            let options = LoadOptions::from_text(&args.device, &args.dtype)?;
            let checkpoint = Checkpoint::open(args.folder())?;
            // Nobody listens when the start was given up.
            tell.send(checkpoint.revision()?).ok();
            PriorModel::load(&checkpoint, options)
        };
        let loaded = DeviceThread::start("device", build)
            .await
            .map_err(|error| Failure::failed(&error))?;
        let device = loaded.map_err(|error| Failure::unusable(&error))?;
        let codebook_size = device.call(|model| model.codebook_size()).await;
        Ok(Self {
            device,
            codebook_size: codebook_size.map_err(|error| Failure::failed(&error))?,
            revision: revision.await.map_err(|error| Failure::failed(&error))?,
        })
    }
}

impl PriorEngine for NativeEngine {
    fn codebook_size(&self) -> u32 {
        self.codebook_size
    }

    fn revision(&self) -> String {
        self.revision.clone()
    }

    fn run(
        &self,
        batch: PriorBatch,
        progress: watch::Sender<BatchProgress>,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Vec<RowOutcome>, EngineError>> {
        // Called here and not in the future: the device starts while the driver still stores the last batch.
        let call = self
            .device
            .call(move |model| run_isolated(model, &batch, &progress, &stop));
        Box::pin(async move {
            call.await
                .map_err(|error| EngineError::Gone(error.into()))?
        })
    }
}

/// Runs the batch; when it fails, runs each row alone, so that one bad row does not take its companions down.
fn run_isolated(
    model: &PriorModel,
    batch: &PriorBatch,
    progress: &watch::Sender<BatchProgress>,
    stop: &CancellationToken,
) -> Result<Vec<RowOutcome>, EngineError> {
    let run = |rows: &[PriorRow]| match run_together(model, batch.size, rows, progress, stop) {
        Err(ModelError::Interrupted) => Err(EngineError::Stopped),
        outcome => Ok(outcome),
    };
    match (run(&batch.rows)?, batch.rows.as_slice()) {
        (Ok(priors), _) => Ok(priors.into_iter().map(Ok).collect()),
        (Err(error), [_]) => Ok(vec![Err(failed(&error))]),
        (Err(error), rows) => {
            tracing::warn!(rows = rows.len(), error = %service::exit::chain(&error), "batch failed, running its rows alone");
            let alone = |row| {
                let outcome = run(std::slice::from_ref(row))?.map_err(|error| failed(&error));
                Ok(outcome.and_then(|mut priors| priors.pop().ok_or_else(no_row)))
            };
            rows.iter().map(alone).collect()
        }
    }
}

fn run_together(
    model: &PriorModel,
    size: ImageSize,
    rows: &[PriorRow],
    progress: &watch::Sender<BatchProgress>,
    stop: &CancellationToken,
) -> Result<Vec<Prior>, ModelError> {
    let requests: Vec<_> = rows
        .iter()
        .map(|row| PriorRequest {
            prompt: &row.prompt,
            seed: row.seed.get(),
        })
        .collect();
    let mut observe = |done: ArProgress| {
        progress.send_replace(BatchProgress {
            tokens: done.token,
            tokens_max: done.tokens,
        });
        if stop.is_cancelled() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    model
        .generate(model_size(size), &requests, &mut observe)?
        .into_iter()
        .map(prior)
        .collect()
}

fn prior(row: model::PriorRow) -> Result<Prior, ModelError> {
    let side = |tokens: u32| u16::try_from(tokens).unwrap_or(u16::MAX);
    let tokens = PriorTokens::new(side(row.token_h), side(row.token_w), row.tokens);
    let tokens = tokens.map_err(|error| ModelError::Torch(error.to_string()))?;
    let usage = PriorUsage {
        prompt_tokens: row.prompt_tokens,
        generated_tokens: row.generated_tokens,
        cached: false,
    };
    Ok(Prior { tokens, usage })
}

/// The size in the model's words.
pub(crate) fn model_size(size: ImageSize) -> ModelSize {
    ModelSize {
        height: size.height(),
        width: size.width(),
    }
}

/// The model's error as its row's: what it refuses fails everywhere alike.
pub(crate) fn failed(error: &ModelError) -> JobError {
    let code = match error {
        ModelError::Request { .. } => ErrorCode::InvalidParameter,
        _ => ErrorCode::ArFailed,
    };
    JobError::new(code, &service::exit::chain(error))
}

fn no_row() -> JobError {
    JobError::new(ErrorCode::ArFailed, "the model answered no row")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[tokio::test]
    async fn a_good_device_passes_its_self_test_and_tells_its_revision() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tiny");
        let args = ModelArgs {
            model: Some(tiny),
            check_model: None,
            device: "cpu".into(),
            dtype: "f32".into(),
            threads: 1,
        };
        let engine = NativeEngine::load(args).await.expect("the tiny checkpoint");
        assert_eq!(engine.self_test().await.expect("it lives"), Ok(()));
        assert_eq!(engine.revision().len(), 12);
    }
}
