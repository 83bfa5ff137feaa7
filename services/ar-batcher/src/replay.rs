//! No model: rows that take their time, tokens that follow from the seed, failures from a script.

mod pace;

use futures::future::BoxFuture;
use protocol::{ErrorCode, ImageSize, JobError, PriorUsage};
use replay::{
    CODEBOOK_SIZE, Fault, FaultStage, Faults, Rules, Times, generated_tokens, prior_tokens,
};
use service::{DeviceThread, ReplayArgs, exit::Failure};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use self::pace::Pace;

use crate::engine::{
    BatchProgress, EngineError, Prior, PriorBatch, PriorEngine, PriorRow, RowOutcome,
};

/// What a replay engine calls its model.
pub const REVISION: &str = "replay";

/// Writes by table.
pub struct ReplayEngine {
    pace: Pace,
    faults: Faults,
    /// Works for nobody: it is there to die or to hang as the script wants it.
    device: DeviceThread<()>,
}

impl ReplayEngine {
    /// Reads the table; a script of failures is read now, to refuse a bad one, and again at every batch.
    pub async fn load(args: &ReplayArgs) -> Result<Self, Failure> {
        let times = Times::read(args.times_file(), args.time_scale)
            .map_err(|error| Failure::unusable(&error))?;
        let faults =
            Faults::open(args.faults.as_deref()).map_err(|error| Failure::unusable(&error))?;
        Self::start(times, faults).await
    }

    async fn start(times: Times, faults: Faults) -> Result<Self, Failure> {
        let device = DeviceThread::start("device", || Ok(())).await;
        Ok(Self {
            pace: Pace::start(times),
            faults,
            device: device.map_err(|error| Failure::failed(&error))??,
        })
    }
}

impl PriorEngine for ReplayEngine {
    fn codebook_size(&self) -> u32 {
        CODEBOOK_SIZE
    }

    fn revision(&self) -> String {
        REVISION.to_owned()
    }

    fn run(
        &self,
        batch: PriorBatch,
        progress: watch::Sender<BatchProgress>,
        stop: CancellationToken,
    ) -> BoxFuture<'static, Result<Vec<RowOutcome>, EngineError>> {
        let tokens = generated_tokens(batch.size);
        // Now and not when the future is polled: a real device starts at once.
        let mut seat = self.pace.join(batch.rows.len(), tokens, progress);
        let rules = self.faults.rules();
        let fatal = rules.as_ref().ok().and_then(|rules| fatal(rules, &batch));
        let device = self.device.clone();
        Box::pin(async move {
            if let Some(fault) = fatal {
                tracing::warn!(?fault, "scripted fault");
                let done = device.call(move |()| fault.enact()).await;
                done.map_err(|error| EngineError::Gone(error.into()))?;
            }
            stop.run_until_cancelled(seat.landed())
                .await
                .ok_or(EngineError::Stopped)?;
            Ok(match rules {
                Ok(rules) => outcomes(&rules, &batch),
                Err(error) => {
                    let text = service::exit::chain(&error);
                    let failed = |_| Err(JobError::new(ErrorCode::ArFailed, &text));
                    batch.rows.iter().map(failed).collect()
                }
            })
        })
    }
}

/// What takes the whole batch down, and more: the first row's that has such a thing.
fn fatal(rules: &Rules, batch: &PriorBatch) -> Option<Fault> {
    let faults = batch
        .rows
        .iter()
        .filter_map(|row| rules.fault(FaultStage::Prior, &row.prompt));
    faults.into_iter().find(|fault| *fault != Fault::Fail)
}

fn outcomes(rules: &Rules, batch: &PriorBatch) -> Vec<RowOutcome> {
    let outcome = |row: &PriorRow| match rules.fault(FaultStage::Prior, &row.prompt) {
        Some(_) => {
            let text = "scripted failure of the replay engine";
            Err(JobError::new(ErrorCode::ArFailed, text))
        }
        None => Ok(prior(row, batch.size)),
    };
    batch.rows.iter().map(outcome).collect()
}

fn prior(row: &PriorRow, size: ImageSize) -> Prior {
    let words = row.prompt.split_whitespace().count();
    Prior {
        tokens: prior_tokens(row.seed, size),
        usage: PriorUsage {
            prompt_tokens: u32::try_from(words).unwrap_or(u32::MAX),
            generated_tokens: generated_tokens(size),
            cached: false,
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use protocol::{JobId, OutputIndex, Seed};
    use replay::{ArTimes, DenoiseTimes, Table};
    use tempfile::TempDir;

    use super::*;

    /// Of a picture of 64x96: a preview of 19 x 13, the grid of 3 x 2, and the last one.
    const TOKENS: u32 = 254;

    fn batch(prompts: &[&str]) -> PriorBatch {
        let row = |(seed, prompt): (u64, &&str)| PriorRow {
            output: JobId::from_u128(seed.into()).output(OutputIndex::new(0).expect("an index")),
            prompt: (**prompt).into(),
            seed: Seed::new(seed).expect("small"),
        };
        PriorBatch {
            size: ImageSize::new(64, 96).expect("multiples of 32"),
            rows: (0..).zip(prompts).map(row).collect(),
        }
    }

    /// 2 ms and 1 ms a row, with a script.
    async fn engine(script: &str) -> (ReplayEngine, TempDir) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("faults.json");
        std::fs::write(&file, script).expect("a writable folder");
        let table = Table {
            ar: ArTimes::new(&[(1, 3.0), (2, 4.0)], TOKENS),
            denoise: DenoiseTimes {
                step_ms: 0.0,
                decode_ms: 0.0,
            },
        };
        let times = Times::new(table, 1.0).expect("in range");
        let faults = Faults::open(Some(&file)).expect("a script");
        let engine = ReplayEngine::start(times, faults).await;
        (engine.expect("a thread"), folder)
    }

    async fn run(
        engine: &ReplayEngine,
        prompts: &[&str],
    ) -> Result<Vec<Result<Prior, ErrorCode>>, EngineError> {
        let progress = watch::Sender::new(BatchProgress::default());
        let outcomes = engine.run(batch(prompts), progress, CancellationToken::new());
        let code = |outcome: RowOutcome| outcome.map_err(|error| error.code);
        Ok(outcomes.await?.into_iter().map(code).collect())
    }

    #[tokio::test]
    async fn a_batch_takes_the_time_of_its_rows_and_tells_its_tokens() {
        let (engine, _folder) = engine("[]").await;
        for (rows, ms) in [(1, 3), (4, 6)] {
            let progress = watch::Sender::new(BatchProgress::default());
            let started_at = Instant::now();
            let outcomes = engine.run(
                batch(&vec!["p"; rows]),
                progress.clone(),
                CancellationToken::new(),
            );
            assert_eq!(outcomes.await.expect("no fault").len(), rows);
            assert!(started_at.elapsed() >= Duration::from_millis(ms), "{rows}");
            let whole = BatchProgress {
                tokens: TOKENS,
                tokens_max: TOKENS,
            };
            assert_eq!(*progress.borrow(), whole);
        }
    }

    #[tokio::test]
    async fn a_row_is_the_same_in_any_company() {
        let (engine, _folder) = engine("[]").await;
        let alone = run(&engine, &["a red fox"]).await.expect("no fault");
        let together = run(&engine, &["a red fox", "q"]).await.expect("no fault");
        let tokens = |outcome: &Result<Prior, ErrorCode>| outcome.as_ref().expect("ok").clone();
        assert_eq!(tokens(&together[0]).tokens, tokens(&alone[0]).tokens);
        assert_eq!(tokens(&together[0]).usage, tokens(&alone[0]).usage);
        assert_ne!(tokens(&together[1]).tokens, tokens(&alone[0]).tokens);
    }

    #[tokio::test]
    async fn a_stopped_batch_ends_in_the_middle() {
        let (engine, _folder) = engine("[]").await;
        let (progress, stop) = (
            watch::Sender::new(BatchProgress::default()),
            CancellationToken::new(),
        );
        let outcomes = engine.run(batch(&["p"]), progress, stop.clone());
        stop.cancel();
        assert!(matches!(outcomes.await, Err(EngineError::Stopped)));
    }

    #[tokio::test]
    async fn a_scripted_failure_is_its_rows_only_until_the_script_is_gone() {
        let script = r#"[{"prompt_contains": "poison", "stage": "prior", "fault": "fail"},
                         {"prompt_contains": "fox", "stage": "denoise", "fault": "fail"}]"#;
        let (engine, folder) = engine(script).await;
        let prompts = ["a fox", "a poison", "p"];
        let codes = |outcomes: Vec<Result<Prior, ErrorCode>>| -> Vec<_> {
            outcomes.into_iter().map(Result::err).collect()
        };
        let failed = codes(run(&engine, &prompts).await.expect("rows only"));
        assert_eq!(failed, [None, Some(ErrorCode::ArFailed), None]);
        assert_eq!(engine.self_test().await.expect("it lives"), Ok(()));

        std::fs::remove_file(folder.path().join("faults.json")).expect("it is there");
        let healed = codes(run(&engine, &prompts).await.expect("rows only"));
        assert_eq!(healed, [None; 3]);
    }

    #[tokio::test]
    async fn a_rule_for_every_prompt_fails_the_self_test_too() {
        let script = r#"[{"prompt_contains": "", "stage": "prior", "fault": "fail"}]"#;
        let (engine, _folder) = engine(script).await;
        let tested = engine.self_test().await.expect("it lives");
        assert_eq!(tested.map_err(|error| error.code), Err(ErrorCode::ArFailed));
    }

    #[tokio::test]
    async fn a_scripted_panic_is_the_end_of_the_engine() {
        let script = r#"[{"prompt_contains": "poison", "stage": "prior", "fault": "panic"}]"#;
        let (engine, _folder) = engine(script).await;
        let gone = run(&engine, &["p", "a poison"]).await;
        assert!(matches!(gone, Err(EngineError::Gone(_))));
    }
}
