use proptest::prelude::*;

use super::*;
use crate::{JobId, OutputIndex};

use OutputState::{ArRunning, ArWaiting, DenoiseRunning, DenoiseWaiting, Queued};
use WorkStage::{Denoise, Prior};

fn worker(name: &str) -> WorkerId {
    name.parse().expect("allowed characters")
}

fn output() -> OutputId {
    JobId::from_u128(1).output(OutputIndex::new(0).expect("below 10"))
}

fn error() -> JobError {
    JobError::new(ErrorCode::DenoiseFailed, "no memory")
}

fn started(stage: WorkStage, name: &str) -> LifeEvent {
    LifeEvent::Started {
        stage,
        worker: worker(name),
    }
}

fn given_back(stage: WorkStage, name: &str) -> LifeEvent {
    LifeEvent::GivenBack {
        stage,
        worker: worker(name),
    }
}

fn failed(stage: WorkStage, name: &str) -> LifeEvent {
    LifeEvent::AttemptFailed {
        stage,
        worker: worker(name),
        error: error(),
    }
}

/// A life in `state`; running ones are worker `a`'s.
fn in_state(state: OutputState) -> OutputLife {
    let attempt = |stage| Attempt {
        stage,
        worker: worker("a"),
        started_at: 1,
        ended_at: None,
        outcome: None,
    };
    let attempts = match state {
        ArRunning => vec![attempt(Prior)],
        DenoiseRunning => vec![attempt(Denoise)],
        _ => Vec::new(),
    };
    OutputLife {
        output: output(),
        state,
        since: 1,
        attempts,
    }
}

#[test]
fn each_event_in_each_state_leads_where_the_table_says() {
    use Refusal::{Ended as Over, NotHeld, PriorStored as Stored};
    let ended = LifeEvent::Ended(Ending::Done);
    let done = OutputState::Done;
    // Columns: queued, ar_waiting, ar_running by a, denoise_waiting, denoise_running by a.
    let open = [Queued, ArWaiting, ArRunning, DenoiseWaiting, DenoiseRunning];
    #[rustfmt::skip]
    let table = [
        (LifeEvent::Admitted,      [Ok(ArWaiting), Ok(ArWaiting), Ok(ArWaiting), Err(Stored), Err(Stored)]),
        (started(Prior, "a"),      [Ok(ArRunning), Ok(ArRunning), Ok(ArRunning), Err(Stored), Err(Stored)]),
        (started(Prior, "b"),      [Ok(ArRunning), Ok(ArRunning), Ok(ArRunning), Err(Stored), Err(Stored)]),
        (given_back(Prior, "a"),   [Err(NotHeld), Err(NotHeld), Ok(Queued), Err(NotHeld), Err(NotHeld)]),
        (given_back(Prior, "b"),   [Err(NotHeld), Err(NotHeld), Err(NotHeld), Err(NotHeld), Err(NotHeld)]),
        (failed(Prior, "a"),       [Err(NotHeld), Err(NotHeld), Ok(Queued), Err(NotHeld), Err(NotHeld)]),
        (LifeEvent::PriorStored,   [Ok(DenoiseWaiting), Ok(DenoiseWaiting), Ok(DenoiseWaiting), Err(Stored), Err(Stored)]),
        (started(Denoise, "a"),    [Ok(DenoiseRunning); 5]),
        (started(Denoise, "b"),    [Ok(DenoiseRunning); 5]),
        (given_back(Denoise, "a"), [Err(NotHeld), Err(NotHeld), Err(NotHeld), Err(NotHeld), Ok(DenoiseWaiting)]),
        (given_back(Denoise, "b"), [Err(NotHeld); 5]),
        (failed(Denoise, "a"),     [Err(NotHeld), Err(NotHeld), Err(NotHeld), Err(NotHeld), Ok(DenoiseWaiting)]),
        (failed(Denoise, "b"),     [Err(NotHeld); 5]),
        (ended,                    [Ok(done); 5]),
    ];
    for (event, expected) in table {
        for (state, expected) in open.into_iter().zip(expected) {
            let next = in_state(state).apply(event.clone(), 2);
            assert_eq!(
                next.map(|life| life.state),
                expected,
                "{event:?} in {state:?}"
            );
        }
        for state in OutputState::ALL
            .into_iter()
            .filter(|state| state.is_final())
        {
            let next = in_state(state).apply(event.clone(), 2);
            assert_eq!(next, Err(Over), "{event:?} in {state:?}");
        }
    }
}

fn outcomes(life: &OutputLife) -> Vec<(&str, Option<&AttemptOutcome>)> {
    let outcome = |attempt: &'_ Attempt| attempt.outcome.clone();
    let names = ["a", "b", "c"];
    life.attempts
        .iter()
        .map(|attempt| {
            let name = names
                .into_iter()
                .find(|name| worker(name) == attempt.worker)
                .expect("one of ours");
            assert_eq!(attempt.ended_at.is_some(), outcome(attempt).is_some());
            (name, attempt.outcome.as_ref())
        })
        .collect()
}

fn run(events: impl IntoIterator<Item = LifeEvent>) -> OutputLife {
    let start = OutputLife::queued(output(), 0);
    events.into_iter().fold(start, |life, event| {
        life.apply(event, 5).expect("the events follow each other")
    })
}

#[test]
fn a_vanished_workers_attempt_counts_and_a_given_back_one_does_not() {
    let life = run([
        LifeEvent::PriorStored,
        started(Denoise, "a"),
        started(Denoise, "b"),
        given_back(Denoise, "b"),
        started(Denoise, "c"),
        failed(Denoise, "c"),
    ]);
    use AttemptOutcome::{Failed, GivenBack, Lost};
    assert_eq!(
        outcomes(&life),
        [
            ("a", Some(&Lost)),
            ("b", Some(&GivenBack)),
            ("c", Some(&Failed(error())))
        ]
    );
    assert_eq!(life.counted(Denoise).count(), 2);
    assert_eq!(life.counted(Prior).count(), 0);
}

#[test]
fn a_start_said_twice_is_one_attempt() {
    let life = run([
        LifeEvent::PriorStored,
        started(Denoise, "a"),
        started(Denoise, "a"),
    ]);
    assert_eq!(outcomes(&life), [("a", None)]);
}

#[test]
fn a_denoise_message_proves_that_the_ar_stage_was_done() {
    let life = run([started(Prior, "a"), started(Denoise, "b")]);
    assert_eq!(
        outcomes(&life),
        [("a", Some(&AttemptOutcome::Finished)), ("b", None)]
    );
}

#[test]
fn many_give_backs_do_not_push_out_what_counts() {
    let mut events = vec![started(Denoise, "a"), failed(Denoise, "a")];
    for _ in 0..3 * ATTEMPTS_KEPT_MAX {
        events.extend([started(Denoise, "b"), given_back(Denoise, "b")]);
    }
    let life = run(events);
    assert_eq!(life.attempts.len(), ATTEMPTS_KEPT_MAX);
    assert_eq!(life.counted(Denoise).count(), 1);
}

#[test]
fn a_request_is_where_its_least_advanced_output_is() {
    use OutputState::{Cancelled, Done, Expired, Failed};
    let table = [
        (vec![], Queued),
        (vec![Done, Queued, DenoiseRunning], Queued),
        (vec![Done, Failed, DenoiseRunning], DenoiseRunning),
        (vec![Done, Done], Done),
        (vec![Done, Cancelled], Cancelled),
        (vec![Cancelled, Expired, Done], Expired),
        (vec![Failed, Cancelled, Expired, Done], Failed),
    ];
    for (states, expected) in table {
        assert_eq!(OutputState::of_request(&states), expected, "{states:?}");
    }
}

#[test]
fn an_ending_follows_from_the_result() {
    for code in ErrorCode::ALL {
        let expected = match code {
            ErrorCode::Cancelled => Ending::Cancelled,
            ErrorCode::DeadlineExceeded => Ending::Expired,
            _ => Ending::Failed,
        };
        assert_eq!(Ending::of::<()>(&Err(JobError::new(code, ""))), expected);
    }
    assert_eq!(Ending::of(&Ok(())), Ending::Done);
}

fn any_event() -> impl Strategy<Value = LifeEvent> {
    let stage = prop_oneof![Just(Prior), Just(Denoise)];
    (0u8..7, stage, "[abc]").prop_map(|(kind, stage, name)| match kind {
        0 => LifeEvent::Admitted,
        1 => LifeEvent::PriorStored,
        2 | 3 => started(stage, &name),
        4 => given_back(stage, &name),
        5 => failed(stage, &name),
        _ => LifeEvent::Ended(Ending::Done),
    })
}

proptest! {
    /// Whatever comes: the AR stage is never entered again once the prior is stored, nothing follows an end, at most
    /// one attempt is open and only in a running state, and a refusal changes nothing.
    #[test]
    fn no_order_of_events_breaks_a_life(events in prop::collection::vec(any_event(), 0..40)) {
        let mut life = OutputLife::queued(output(), 0);
        for event in events {
            let before = life.clone();
            match life.clone().apply(event, 1) {
                Ok(next) => life = next,
                Err(_) => prop_assert_eq!(&life, &before),
            }
            prop_assert!(!before.state.is_final() || life == before);
            let was_denoising = matches!(before.state, DenoiseWaiting | DenoiseRunning);
            prop_assert!(!was_denoising || life.state >= DenoiseWaiting);
            let open = life.attempts.iter().filter(|attempt| attempt.outcome.is_none()).count();
            prop_assert_eq!(open, usize::from(matches!(life.state, ArRunning | DenoiseRunning)));
            prop_assert!(life.attempts.len() <= ATTEMPTS_KEPT_MAX);
        }
    }
}
