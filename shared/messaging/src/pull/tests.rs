use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const ACK_WAIT: Duration = Duration::from_secs(15);
const PERIOD: Duration = Duration::from_secs(5);

fn message(sequence: Sequence, reply: &str) -> Event {
    Event::Message {
        sequence,
        reply: reply.to_owned(),
    }
}

fn nak(reply: &str) -> Action {
    Action::Nak {
        reply: reply.to_owned(),
    }
}

/// One rule: events, each some time after the last, and the actions each calls for.
fn check(rule: &str, steps: Vec<(Duration, Event, Vec<Action>)>) {
    let mut now = Instant::now();
    let mut state = PullState::new(ACK_WAIT);
    for (at, (after, event, expected)) in steps.into_iter().enumerate() {
        now += after;
        let text = format!("{rule}, step {at}: {event:?}");
        assert_eq!(state.apply(event, now), expected, "{text}");
    }
}

const NOW: Duration = Duration::ZERO;
const MS: Duration = Duration::from_millis(1);

#[test]
fn a_pull_goes_out_only_while_a_message_is_wanted() {
    check(
        "one pull per want",
        vec![
            (NOW, Event::Deadline, vec![]),
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (MS, Event::Wanted, vec![]),
            (MS, message(7, "a"), vec![Action::Deliver { sequence: 7 }]),
            (MS, Event::Taken { sequence: 7 }, vec![]),
            (MS, Event::Wanted, vec![Action::Pull { number: 2 }]),
        ],
    );
}

#[test]
fn an_expired_pull_is_followed_by_the_next_at_once() {
    check(
        "expired",
        vec![
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (
                PULL_EXPIRES,
                Event::PullExpired { number: 1 },
                vec![Action::Pull { number: 2 }],
            ),
            (MS, Event::PullExpired { number: 1 }, vec![]),
        ],
    );
}

#[test]
fn a_refused_pull_is_tried_again_after_a_growing_pause() {
    check(
        "refused",
        vec![
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (MS, Event::PullRefused { number: 1 }, vec![]),
            (MS * 19, Event::Deadline, vec![]),
            (MS, Event::Deadline, vec![Action::Pull { number: 2 }]),
            (MS, Event::PullRefused { number: 2 }, vec![]),
            (MS * 39, Event::Deadline, vec![]),
            (MS, Event::Deadline, vec![Action::Pull { number: 3 }]),
        ],
    );
}

#[test]
fn a_pull_without_an_answer_is_given_up() {
    check(
        "no answer",
        vec![
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (PULL_LOST_AFTER - MS, Event::Deadline, vec![]),
            (MS, Event::Deadline, vec![Action::Pull { number: 2 }]),
        ],
    );
}

#[test]
fn a_new_connection_is_pulled_from_at_once() {
    check(
        "reconnect",
        vec![
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (MS, Event::Disconnected, vec![]),
            (PULL_LOST_AFTER, Event::Deadline, vec![]),
            (MS, Event::Connected, vec![Action::Pull { number: 2 }]),
            (MS, Event::Connected, vec![Action::Pull { number: 3 }]),
        ],
    );
}

#[test]
fn a_message_that_nobody_wants_goes_back() {
    check(
        "unwanted",
        vec![
            (NOW, message(1, "a"), vec![nak("a")]),
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (MS, message(2, "b"), vec![Action::Deliver { sequence: 2 }]),
            (MS, message(3, "c"), vec![nak("c")]),
        ],
    );
}

#[test]
fn a_held_message_that_comes_again_is_adopted_not_delivered() {
    let adopt = Action::Adopt {
        sequence: 1,
        reply: "a2".to_owned(),
    };
    check(
        "adopted",
        vec![
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (MS, message(1, "a1"), vec![Action::Deliver { sequence: 1 }]),
            (MS, Event::Taken { sequence: 1 }, vec![]),
            (MS, Event::Wanted, vec![Action::Pull { number: 2 }]),
            // The pull it came by is used up, and the want still stands.
            (
                MS,
                message(1, "a2"),
                vec![adopt, Action::Pull { number: 3 }],
            ),
            (
                PERIOD,
                Event::Deadline,
                vec![
                    Action::Progress {
                        number: 1,
                        reply: "a2".to_owned(),
                    },
                    Action::Pull { number: 4 },
                ],
            ),
        ],
    );
}

#[test]
fn progress_is_reported_while_a_message_is_held() {
    let progress = |number| Action::Progress {
        number,
        reply: "a".to_owned(),
    };
    check(
        "progress",
        vec![
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (NOW, message(1, "a"), vec![Action::Deliver { sequence: 1 }]),
            (NOW, Event::Taken { sequence: 1 }, vec![]),
            (PERIOD, Event::Deadline, vec![progress(1)]),
            (MS, Event::ProgressAnswered { number: 1 }, vec![]),
            (PERIOD - MS, Event::Deadline, vec![progress(2)]),
            (MS, Event::ProgressAnswered { number: 2 }, vec![]),
            (MS, Event::Settled { sequence: 1 }, vec![]),
            (PERIOD, Event::Deadline, vec![]),
        ],
    );
}

#[test]
fn a_message_without_answered_progress_is_lost_and_left_alone() {
    let progress = |number| Action::Progress {
        number,
        reply: "a".to_owned(),
    };
    check(
        "lost",
        vec![
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (NOW, message(1, "a"), vec![Action::Deliver { sequence: 1 }]),
            (NOW, Event::Taken { sequence: 1 }, vec![]),
            (PERIOD, Event::Deadline, vec![progress(1)]),
            (PERIOD, Event::Deadline, vec![progress(2)]),
            (PERIOD, Event::Deadline, vec![Action::Lost { sequence: 1 }]),
            (PERIOD, Event::Deadline, vec![]),
            (PERIOD, Event::Connected, vec![]),
            // Delivered to us again, it is ours again.
            (
                MS,
                message(1, "b"),
                vec![Action::Adopt {
                    sequence: 1,
                    reply: "b".to_owned(),
                }],
            ),
            (
                PERIOD,
                Event::Deadline,
                vec![Action::Progress {
                    number: 3,
                    reply: "b".to_owned(),
                }],
            ),
        ],
    );
}

#[test]
fn an_answer_counts_from_when_the_progress_was_sent() {
    let progress = |number| Action::Progress {
        number,
        reply: "a".to_owned(),
    };
    check(
        "late answer",
        vec![
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (NOW, message(1, "a"), vec![Action::Deliver { sequence: 1 }]),
            (NOW, Event::Taken { sequence: 1 }, vec![]),
            (PERIOD, Event::Deadline, vec![progress(1)]),
            (PERIOD, Event::Deadline, vec![progress(2)]),
            (PERIOD - MS, Event::ProgressAnswered { number: 1 }, vec![]),
            (MS, Event::Deadline, vec![progress(3)]),
            (PERIOD, Event::Deadline, vec![Action::Lost { sequence: 1 }]),
        ],
    );
}

#[test]
fn progress_waits_for_the_connection_and_then_comes_at_once() {
    check(
        "disconnected",
        vec![
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (NOW, message(1, "a"), vec![Action::Deliver { sequence: 1 }]),
            (NOW, Event::Taken { sequence: 1 }, vec![]),
            (MS, Event::Disconnected, vec![]),
            (PERIOD, Event::Deadline, vec![]),
            (
                MS,
                Event::Connected,
                vec![Action::Progress {
                    number: 1,
                    reply: "a".to_owned(),
                }],
            ),
        ],
    );
}

#[test]
fn a_message_that_is_not_taken_is_withdrawn() {
    check(
        "untaken",
        vec![
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (NOW, message(1, "a"), vec![Action::Deliver { sequence: 1 }]),
            (
                UNTAKEN_MAX,
                Event::Deadline,
                vec![Action::Withdraw { sequence: 1 }],
            ),
            (NOW, Event::Settled { sequence: 1 }, vec![]),
            (PERIOD, Event::Deadline, vec![]),
        ],
    );
}

#[test]
fn a_closing_queue_takes_nothing_and_gives_back_what_is_not_taken() {
    check(
        "closing",
        vec![
            (NOW, Event::Wanted, vec![Action::Pull { number: 1 }]),
            (NOW, message(1, "a"), vec![Action::Deliver { sequence: 1 }]),
            (NOW, Event::Closing, vec![Action::Withdraw { sequence: 1 }]),
            (NOW, Event::Settled { sequence: 1 }, vec![]),
            (NOW, message(2, "b"), vec![nak("b")]),
            (NOW, Event::Wanted, vec![]),
        ],
    );
}

#[test]
fn a_closed_queue_ends_when_nothing_can_come_and_nothing_is_held() {
    let now = Instant::now();
    let mut state = PullState::new(ACK_WAIT);
    state.apply(Event::Wanted, now);
    state.apply(message(1, "a"), now);
    state.apply(Event::Taken { sequence: 1 }, now);
    state.apply(Event::Wanted, now);
    state.apply(Event::Closing, now);
    assert!(!state.is_closed_to_messages(), "a pull is outstanding");
    state.apply(Event::PullExpired { number: 2 }, now);
    assert!(
        state.is_closed_to_messages() && !state.is_finished(),
        "one message is in hand"
    );
    state.apply(Event::Settled { sequence: 1 }, now);
    assert!(state.is_finished());
}

#[test]
fn no_more_is_held_than_the_limit() {
    let now = Instant::now();
    let mut state = PullState::new(ACK_WAIT);
    for sequence in 0..HELD_MAX as u64 {
        state.apply(Event::Wanted, now);
        assert_eq!(
            state.apply(message(sequence, "a"), now),
            [Action::Deliver { sequence }]
        );
        state.apply(Event::Taken { sequence }, now);
    }
    assert_eq!(state.apply(Event::Wanted, now), []);
    assert_eq!(state.apply(message(999, "b"), now), [nak("b")]);
    assert_eq!(
        state.apply(Event::Settled { sequence: 0 }, now),
        [Action::Pull { number: 257 }]
    );
}

/// What an observer of events and actions knows.
#[derive(Default)]
struct Observer {
    outstanding: Option<(u64, Instant)>,
    held: BTreeMap<Sequence, String>,
    untaken: BTreeSet<Sequence>,
    wanted: bool,
}

impl Observer {
    fn before(&mut self, event: &Event, now: Instant) {
        let number = self.outstanding.map(|(number, _)| number);
        match event {
            Event::PullExpired { number: ended } | Event::PullRefused { number: ended }
                if number == Some(*ended) =>
            {
                self.outstanding = None;
            }
            Event::Connected | Event::Disconnected | Event::Message { .. } => {
                self.outstanding = None
            }
            Event::Wanted => self.wanted = true,
            Event::Settled { sequence } => {
                self.held.remove(sequence);
                self.untaken.remove(sequence);
            }
            Event::Taken { sequence } => {
                self.untaken.remove(sequence);
            }
            Event::Closing => self.wanted = false,
            Event::PullExpired { .. }
            | Event::PullRefused { .. }
            | Event::ProgressAnswered { .. }
            | Event::Deadline => {}
        }
        if self
            .outstanding
            .is_some_and(|(_, since)| now - since >= PULL_LOST_AFTER)
        {
            self.outstanding = None;
        }
    }

    fn after(
        &mut self,
        event: &Event,
        actions: &[Action],
        now: Instant,
    ) -> Result<(), TestCaseError> {
        let mut fates = 0;
        for action in actions {
            match action {
                Action::Pull { number } => {
                    prop_assert!(self.outstanding.is_none(), "a second pull is outstanding");
                    prop_assert!(self.wanted, "nobody wants a message");
                    self.outstanding = Some((*number, now));
                }
                Action::Deliver { sequence } => {
                    let Event::Message {
                        sequence: came,
                        reply,
                    } = event
                    else {
                        panic!("delivered out of nothing")
                    };
                    prop_assert_eq!(came, sequence);
                    prop_assert!(self.wanted && !self.held.contains_key(sequence));
                    self.held.insert(*sequence, reply.clone());
                    self.untaken.insert(*sequence);
                    self.wanted = false;
                    fates += 1;
                }
                Action::Nak { reply: back } => {
                    let Event::Message { sequence, reply } = event else {
                        panic!("given back out of nothing")
                    };
                    prop_assert!(back == reply && !self.held.contains_key(sequence));
                    fates += 1;
                }
                Action::Adopt { sequence, reply } => {
                    prop_assert!(
                        self.held.insert(*sequence, reply.clone()).is_some(),
                        "adopted but not held"
                    );
                    fates += 1;
                }
                Action::Progress { reply, .. } => {
                    prop_assert!(
                        self.held.values().any(|held| held == reply),
                        "progress of what is not held"
                    );
                }
                Action::Lost { sequence } => prop_assert!(self.held.contains_key(sequence)),
                Action::Withdraw { sequence } => prop_assert!(self.untaken.contains(sequence)),
            }
        }
        prop_assert_eq!(
            fates,
            usize::from(matches!(event, Event::Message { .. })),
            "one fate per message"
        );
        Ok(())
    }
}

fn any_event() -> impl Strategy<Value = Event> {
    let number = 0u64..40;
    let sequence = 0u64..5;
    prop_oneof![
        6 => Just(Event::Wanted),
        6 => (sequence.clone(), 0u32..1000).prop_map(|(sequence, n)| message(sequence, &format!("{sequence}-{n}"))),
        3 => number.clone().prop_map(|number| Event::PullExpired { number }),
        3 => number.clone().prop_map(|number| Event::PullRefused { number }),
        4 => number.prop_map(|number| Event::ProgressAnswered { number }),
        3 => sequence.clone().prop_map(|sequence| Event::Taken { sequence }),
        3 => sequence.prop_map(|sequence| Event::Settled { sequence }),
        1 => Just(Event::Connected),
        1 => Just(Event::Disconnected),
        6 => Just(Event::Deadline),
    ]
}

proptest! {
    #[test]
    fn any_order_of_events_keeps_the_rules(
        steps in proptest::collection::vec((0u64..3_000, any_event()), 1..120),
        closing_at in 0usize..200,
    ) {
        let mut now = Instant::now();
        let mut state = PullState::new(Duration::from_secs(6));
        let mut observer = Observer::default();
        for (at, (after, event)) in steps.into_iter().enumerate() {
            now += Duration::from_millis(after);
            let event = if at == closing_at { Event::Closing } else { event };
            if closing_at < at && event == Event::Wanted {
                continue;
            }
            observer.before(&event, now);
            let actions = state.apply(event.clone(), now);
            observer.after(&event, &actions, now)?;
            prop_assert!(state.next_deadline().is_none_or(|deadline| deadline > now), "a deadline in the past");
        }
    }
}
