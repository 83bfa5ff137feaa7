//! The SRT engine against the fake SRT server: every fault is its own row's, and what may pass is tried again.

#![expect(clippy::unwrap_used, reason = "in a test the panic is the report")]

use std::{collections::BTreeSet, time::Duration};

use ar_batcher::{
    engine::{BatchProgress, EngineError, PriorBatch, PriorEngine, PriorRow, RowOutcome},
    srt::{SrtArgs, SrtEngine},
};
use integration::{
    TINY_CODEBOOK_SIZE,
    fleet::until,
    free_port,
    srt::{FakeSrt, Fault, Rule, Setup, prior},
    tiny_model,
};
use protocol::{ErrorCode, ImageSize, JobId, OutputIndex, Seed};
use replay::{ArTimes, DenoiseTimes, Table, Times};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Long beside an instant answer, short beside a test.
const TIMEOUT: Duration = Duration::from_millis(500);
/// The seed that faults are for.
const POISON: u64 = 1_013;

const INSTANT: &[(u32, f64)] = &[(1, 0.0)];
/// A row alone is done after a minute.
const SLOW: &[(u32, f64)] = &[(1, 60_000.0)];

fn setup(rows_ms: &'static [(u32, f64)]) -> Setup {
    let table = Table {
        ar: ArTimes::new(rows_ms, 258),
        denoise: DenoiseTimes {
            step_ms: 0.0,
            decode_ms: 0.0,
        },
    };
    Setup::new(Times::new(table, 1.0).unwrap(), TINY_CODEBOOK_SIZE)
}

async fn server(setup: Setup) -> FakeSrt {
    FakeSrt::start_anywhere(setup).await.unwrap()
}

fn engine(url: &str) -> SrtEngine {
    let args = SrtArgs {
        srt_urls: vec![url.parse().unwrap()],
        srt_timeout: TIMEOUT,
    };
    SrtEngine::load(&args, &tiny_model()).unwrap().remove(0)
}

fn small() -> ImageSize {
    ImageSize::new(64, 32).unwrap()
}

fn batch(seeds: impl IntoIterator<Item = u64>, size: ImageSize) -> PriorBatch {
    let row = |seed: u64| PriorRow {
        output: JobId::from_u128(seed.into()).output(OutputIndex::new(0).unwrap()),
        prompt: "a red fox".into(),
        seed: Seed::new(seed).unwrap(),
    };
    PriorBatch {
        size,
        rows: seeds.into_iter().map(row).collect(),
    }
}

async fn run(engine: &SrtEngine, seeds: &[u64]) -> Result<Vec<RowOutcome>, EngineError> {
    let progress = watch::Sender::new(BatchProgress::default());
    let batch = batch(seeds.iter().copied(), small());
    engine.run(batch, progress, CancellationToken::new()).await
}

/// How each row failed; those that did not have the prior of their seed.
fn codes(seeds: &[u64], outcomes: &[RowOutcome]) -> Vec<Option<ErrorCode>> {
    assert_eq!(seeds.len(), outcomes.len());
    let code = |(seed, outcome): (&u64, &RowOutcome)| match outcome {
        Ok(written) => {
            let known = prior(Seed::new(*seed).unwrap(), small(), TINY_CODEBOOK_SIZE);
            assert_eq!(written.tokens.ids(), known.ids(), "seed {seed}");
            None
        }
        Err(error) => Some(error.code),
    };
    seeds.iter().zip(outcomes).map(code).collect()
}

#[tokio::test]
async fn each_row_gets_the_prior_of_its_seed_over_one_connection() {
    let server = server(setup(INSTANT)).await;
    // The slash is that of many a configuration.
    let engine = engine(&format!("{}/", server.url()));
    for seeds in [&[7][..], &[8, 9, 10], &[0], &[i64::MAX as u64]] {
        let outcomes = run(&engine, seeds).await.unwrap();
        assert_eq!(codes(seeds, &outcomes), vec![None; seeds.len()]);
    }
    assert_eq!(engine.self_test().await.unwrap(), Ok(()));
    let seen = server.seen();
    assert_eq!((seen.connections, seen.calls), (1, 5), "{seen:?}");
    assert_eq!((seen.violations, seen.aborts), (vec![], vec![]));
}

#[tokio::test]
async fn a_row_of_every_size_has_its_own_grid_and_counts() {
    let server = server(setup(INSTANT)).await;
    let engine = engine(&server.url());
    for (width, height, new_tokens) in [
        (512, 512, 513),
        (1024, 1024, 1281),
        (1152, 864, 1207),
        (1280, 736, 1173),
        (1088, 1920, 2293),
        (2048, 2048, 4353),
    ] {
        let size = ImageSize::new(width, height).unwrap();
        let progress = watch::Sender::new(BatchProgress::default());
        let ran = engine.run(batch([7], size), progress.clone(), CancellationToken::new());
        let written = ran.await.unwrap().remove(0).unwrap();
        let known = prior(Seed::new(7).unwrap(), size, TINY_CODEBOOK_SIZE);
        assert_eq!(written.tokens, known, "{size}");
        assert_eq!(written.usage.generated_tokens, new_tokens, "{size}");
        let told = *progress.borrow();
        assert_eq!((told.tokens, told.tokens_max), (new_tokens, new_tokens));
    }
    assert_eq!(server.seen().violations, [""; 0]);
}

/// 28 rows, the slots of the published runs, with one poison among them, in one call.
#[tokio::test]
async fn of_28_rows_with_a_poison_among_them_27_succeed_whatever_it_does() {
    use ErrorCode::{ArFailed, InvalidParameter, PriorTokensInvalid};
    let seeds: Vec<u64> = (1_000..1_028).collect();
    for (fault, code) in [
        (Fault::ShortIds, PriorTokensInvalid),
        (Fault::EarlyEos, PriorTokensInvalid),
        (Fault::IdsOutOfRange, PriorTokensInvalid),
        (Fault::MissingUsage, ArFailed),
        (Fault::Abort, ArFailed),
        (Fault::WrongLength, PriorTokensInvalid),
        (Fault::BadRequest, InvalidParameter),
        (Fault::ServerError, ArFailed),
        (Fault::BadGateway, ArFailed),
        (Fault::Hang, ArFailed),
        (Fault::StalledBody, ArFailed),
        (Fault::Reset, ArFailed),
    ] {
        let server = server(setup(INSTANT)).await;
        server.script(&[Rule::always(POISON, fault)]);
        let outcomes = run(&engine(&server.url()), &seeds).await.unwrap();
        let wanted = seeds.iter().map(|seed| (*seed == POISON).then_some(code));
        let wanted: Vec<_> = wanted.collect();
        assert_eq!(codes(&seeds, &outcomes), wanted, "{fault:?}");
        let seen = server.seen();
        assert_eq!(seen.violations, [""; 0], "{fault:?}");
        let names: BTreeSet<_> = seen.rids.iter().collect();
        assert_eq!(names.len(), seen.rids.len(), "a name for each attempt");
        if fault == Fault::BadRequest {
            let asked = seen.seeds.iter().filter(|seed| **seed == POISON).count();
            assert_eq!(asked, 2, "with its companions, and once alone");
        }
        until("nothing runs for nobody", || async {
            (server.rows_in_flight() == 0).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn what_may_pass_is_tried_again_and_what_may_not_is_not() {
    let failed = Some(ErrorCode::ArFailed);
    let refused = Some(ErrorCode::InvalidParameter);
    for (rule, calls, code) in [
        (Rule::once(7, Fault::Reset), 2, None),
        (Rule::once(7, Fault::ServerError), 2, None),
        (Rule::once(7, Fault::Slow), 1, None),
        (Rule::once(7, Fault::BadRequest), 1, refused),
        (Rule::once(7, Fault::Hang), 1, failed),
        (Rule::always(7, Fault::ServerError), 3, failed),
        (Rule::always(7, Fault::Reset), 3, failed),
    ] {
        let server = server(setup(INSTANT)).await;
        server.script(std::slice::from_ref(&rule));
        let outcomes = run(&engine(&server.url()), &[7]).await.unwrap();
        assert_eq!(codes(&[7], &outcomes), [code], "{rule:?}");
        assert_eq!(server.seen().calls, calls, "{rule:?}");
    }
}

#[tokio::test]
async fn a_refused_row_is_told_the_status_and_not_the_server() {
    let server = server(setup(INSTANT)).await;
    server.script(&[Rule::always(7, Fault::BadRequest)]);
    let outcome = run(&engine(&server.url()), &[7]).await.unwrap().remove(0);
    let error = outcome.unwrap_err();
    assert_eq!(error.code, ErrorCode::InvalidParameter);
    assert!(error.text.contains("400"), "{error}");
    let address = server.address().to_string();
    assert!(!error.text.contains(&address), "{error}");
}

#[tokio::test]
async fn a_server_of_no_such_route_is_its_own_trouble() {
    let server = server(setup(INSTANT)).await;
    let elsewhere = format!("{}/elsewhere", server.url());
    let outcomes = run(&engine(&elsewhere), &[7]).await.unwrap();
    assert_eq!(codes(&[7], &outcomes), [Some(ErrorCode::ArFailed)]);
}

/// A router whose server has just died with the row says that it is full.
#[tokio::test]
async fn a_server_that_is_full_after_it_broke_off_has_failed_the_row() {
    for broke in [Fault::Reset, Fault::ServerError] {
        let server = server(setup(INSTANT)).await;
        server.script(&[Rule::once(7, broke), Rule::once(7, Fault::Full)]);
        let outcomes = run(&engine(&server.url()), &[7]).await.unwrap();
        let failed = Some(ErrorCode::ArFailed);
        assert_eq!(codes(&[7], &outcomes), [failed], "{broke:?}");
        assert_eq!(server.seen().calls, 2, "{broke:?}");
    }
}

#[tokio::test]
async fn a_row_that_a_proxy_lost_sight_of_is_aborted() {
    let server = server(setup(SLOW)).await;
    server.script(&[Rule::always(7, Fault::BadGateway)]);
    let outcomes = run(&engine(&server.url()), &[7]).await.unwrap();
    assert_eq!(codes(&[7], &outcomes), [Some(ErrorCode::ArFailed)]);
    let seen = server.seen();
    assert_eq!((seen.calls, &seen.aborts), (3, &seen.rids));
    assert_eq!(server.rows_in_flight(), 0);
}

#[tokio::test]
async fn a_row_that_the_server_did_not_take_is_not_aborted() {
    for fault in [Fault::BadRequest, Fault::Full] {
        let server = server(setup(INSTANT)).await;
        server.script(&[Rule::always(7, fault)]);
        run(&engine(&server.url()), &[7]).await.ok();
        let seen = server.seen();
        assert_eq!((seen.calls, seen.aborts), (1, vec![]), "{fault:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_full_or_away_gives_the_rows_back() {
    let of_two = server(Setup {
        rows_max: 2,
        ..setup(INSTANT)
    });
    let of_two = of_two.await;
    let refused = run(&engine(&of_two.url()), &[1, 2, 3]).await;
    assert!(matches!(refused, Err(EngineError::Full)), "{refused:?}");
    assert_eq!(of_two.seen().calls, 1, "whoever waits for room waits here");

    let busy = server(setup(INSTANT)).await;
    busy.script(&[Rule::once(7, Fault::Full)]);
    let engine_of_busy = engine(&busy.url());
    let refused = run(&engine_of_busy, &[7]).await;
    assert!(matches!(refused, Err(EngineError::Full)), "{refused:?}");
    assert!(run(&engine_of_busy, &[7]).await.is_ok());

    let nobody = format!("http://127.0.0.1:{}", free_port());
    let refused = run(&engine(&nobody), &[7]).await;
    assert!(matches!(refused, Err(EngineError::Full)), "{refused:?}");
}

#[tokio::test]
async fn a_stopped_call_is_aborted_row_by_row() {
    let server = server(setup(SLOW)).await;
    let (engine, stop) = (engine(&server.url()), CancellationToken::new());
    let progress = watch::Sender::new(BatchProgress::default());
    let ran = engine.run(batch([1, 2, 3], small()), progress, stop.clone());
    let stopper = async {
        until("the rows are in flight", || async {
            (server.rows_in_flight() == 3).then_some(())
        })
        .await;
        stop.cancel();
    };
    let (ran, ()) = tokio::join!(ran, stopper);
    assert!(matches!(ran, Err(EngineError::Stopped)), "{ran:?}");
    let seen = server.seen();
    let names = |names: &[String]| names.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(names(&seen.aborts), names(&seen.rids));
    assert_eq!((seen.aborts.len(), server.rows_in_flight()), (3, 0));
}

#[tokio::test]
async fn a_call_that_takes_too_long_is_aborted_and_named() {
    let server = server(setup(SLOW)).await;
    let url = server.url().replace("http://", "http://user:secret@");
    let outcome = run(&engine(&url), &[7]).await.unwrap().remove(0);
    let error = outcome.unwrap_err();
    assert_eq!(error.code, ErrorCode::ArFailed);
    assert!(error.text.contains(&server.url()), "{error}");
    assert!(!error.text.contains("secret"), "{error}");
    let seen = server.seen();
    assert_eq!((seen.calls, &seen.aborts), (1, &seen.rids));
    assert_eq!(server.rows_in_flight(), 0);
}

#[tokio::test]
async fn a_server_that_dies_with_a_row_counts_as_that_rows_failure() {
    let server = server(setup(&[(1, 600_000.0)])).await;
    let engine = engine(&server.url());
    let killer = async {
        until("the row is in flight", || async {
            (server.rows_in_flight() == 1).then_some(())
        })
        .await;
        server.kill().await;
    };
    let (outcomes, ()) = tokio::join!(run(&engine, &[7]), killer);
    // It may be what has killed the server.
    let failed = Some(ErrorCode::ArFailed);
    assert_eq!(codes(&[7], &outcomes.unwrap()), [failed]);
    let refused = run(&engine, &[8]).await;
    assert!(matches!(refused, Err(EngineError::Full)), "{refused:?}");
}

#[tokio::test]
async fn a_prompt_that_no_model_takes_costs_no_call() {
    let server = server(setup(INSTANT)).await;
    let mut two = batch([7, 8], small());
    two.rows[0].prompt = "a <|image|> of nothing".into();
    let progress = watch::Sender::new(BatchProgress::default());
    let ran = engine(&server.url()).run(two, progress, CancellationToken::new());
    let found = codes(&[7, 8], &ran.await.unwrap());
    assert_eq!(found, [Some(ErrorCode::InvalidParameter), None]);
    assert_eq!(server.seen().seeds, [8]);
}
