//! Our own AR model on libtorch, on its device thread.

use std::ops::ControlFlow;

use futures::future::BoxFuture;
use model::{
    ArProgress, Checkpoint, ImageSize as ModelSize, LoadOptions, ModelError, PriorModel,
    PriorRequest,
    probe::{MemoryWatch, OperatorRecording},
};
use protocol::{ErrorCode, ImageSize, JobError, PriorTokens, PriorUsage};
use service::{
    DeviceThread, ModelArgs,
    exit::Failure,
    metrics::{DeviceClock, SecondsCounter},
    profile::{Operator, Probes, Recorder, Steps},
};
use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::engine::{
    BatchProgress, EngineError, Prior, PriorBatch, PriorEngine, PriorRow, RowOutcome,
};

/// The native engine: batches rows of equal size, one batch at a time.
pub struct NativeEngine {
    device: DeviceThread<Loaded>,
    codebook_size: u32,
    revision: String,
}

/// What lies on the device's thread.
struct Loaded {
    model: PriorModel,
    memory: MemoryWatch,
    probes: Probes,
    busy: SecondsCounter,
}

impl NativeEngine {
    /// Loads the model on a thread of its own, which counts in `busy` how long it writes.
    pub async fn load(
        args: ModelArgs,
        probes: Probes,
        busy: SecondsCounter,
    ) -> Result<Self, Failure> {
        let (tell, revision) = oneshot::channel();
        let build = move || {
            model::set_threads(args.threads);
            let options = LoadOptions::from_text(&args.device, &args.dtype)?;
            // Before the weights, which are part of it.
            let memory = MemoryWatch::begin(options.device)?;
            let checkpoint = Checkpoint::open(args.folder())?;
            // Nobody listens when the start was given up.
            tell.send(checkpoint.revision()?).ok();
            let loaded = Loaded {
                model: PriorModel::load(&checkpoint, options)?,
                memory,
                probes,
                busy,
            };
            loaded.probes.profiles.offer("decode step");
            Ok::<_, ModelError>(loaded)
        };
        let loaded = DeviceThread::start("device", build)
            .await
            .map_err(|error| Failure::failed(&error))?;
        let device = loaded.map_err(|error| Failure::unusable(&error))?;
        let codebook_size = device.call(|loaded| loaded.model.codebook_size()).await;
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
        let call = self.device.call(move |loaded| {
            let clock = DeviceClock::start([loaded.busy.clone()]);
            let report = Report { progress, clock };
            run_isolated(loaded, &batch, &report, &stop)
        });
        Box::pin(async move {
            call.await
                .map_err(|error| EngineError::Gone(error.into()))?
        })
    }
}

/// What is told of a batch while it runs: how far it is, and that the device works.
struct Report {
    progress: watch::Sender<BatchProgress>,
    clock: DeviceClock<1>,
}

/// Runs the batch; when it fails, runs each row alone, so that one bad row does not take its companions down.
fn run_isolated(
    loaded: &Loaded,
    batch: &PriorBatch,
    report: &Report,
    stop: &CancellationToken,
) -> Result<Vec<RowOutcome>, EngineError> {
    let run = |rows: &[PriorRow]| match run_together(loaded, batch.size, rows, report, stop) {
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
    loaded: &Loaded,
    size: ImageSize,
    rows: &[PriorRow],
    report: &Report,
    stop: &CancellationToken,
) -> Result<Vec<Prior>, ModelError> {
    let requests: Vec<_> = rows
        .iter()
        .map(|row| PriorRequest {
            prompt: &row.prompt,
            seed: row.seed.get(),
        })
        .collect();
    let Loaded {
        model,
        memory,
        probes,
        ..
    } = loaded;
    let mut recorded = Steps::new(&probes.profiles, OPERATORS);
    // What the last batch left behind is no peak of this one.
    memory.take();
    let mut observe = |done: ArProgress| {
        if let Some(stage) = stage_ended(done) {
            let used = memory.take();
            probes.memory.ended(stage, used.live, used.peak);
        }
        let goes_on = !stop.is_cancelled();
        recorded.between(goes_on && done.token < done.tokens);
        report.clock.worked();
        report.progress.send_replace(BatchProgress {
            tokens: done.token,
            tokens_max: done.tokens,
        });
        if goes_on {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    };
    model
        .generate(model_size(size), &requests, &mut observe)?
        .into_iter()
        .map(prior)
        .collect()
}

/// The first token comes of the prompt, the last one ends the batch.
fn stage_ended(done: ArProgress) -> Option<&'static str> {
    match done.token {
        1 => Some("prefill"),
        token if token == done.tokens => Some("decode"),
        _ => None,
    }
}

/// Records libtorch's operators.
const OPERATORS: Recorder<OperatorRecording, ModelError> = Recorder {
    begin: OperatorRecording::begin,
    finish: |recording| {
        let operators = recording.finish().into_iter();
        let operators = operators.map(|operator| Operator {
            name: operator.name,
            calls: operator.calls,
            self_ns: operator.self_ns,
            total_ns: operator.total_ns,
        });
        operators.collect()
    },
};

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

    use protocol::Role;
    use service::{
        metrics::{Metrics, Worker},
        profile::Profiles,
    };

    use super::*;

    #[tokio::test]
    async fn a_good_device_passes_its_self_test_works_for_it_and_tells_its_revision() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/tiny");
        let args = ModelArgs {
            model: Some(tiny),
            check_model: None,
            device: "cpu".into(),
            device_label: None,
            dtype: "f32".into(),
            threads: 1,
        };
        let metrics = Metrics::new(Role::ArBatcher);
        let probes = Probes {
            memory: Worker::register(&metrics, "ar", []).memory,
            profiles: Profiles::default(),
        };
        let busy = SecondsCounter::default();
        let engine = NativeEngine::load(args, probes, busy.clone()).await;
        let engine = engine.expect("the tiny checkpoint");
        assert_eq!(busy.get(), 0.0, "loading is no work");
        assert_eq!(engine.self_test().await.expect("it lives"), Ok(()));
        assert!(busy.get() > 0.0);
        assert_eq!(engine.revision().len(), 12);
    }
}
