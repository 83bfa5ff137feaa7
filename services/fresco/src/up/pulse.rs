//! Whether a service hangs: a pure rule over the answers to its probes.
//!
//! A process that neither works nor ends holds its place for ever: nothing else restarts it. One that has never been
//! ready is the supervisor's, which knows how long a model may load.

use std::time::Duration;

use tokio::time::Instant;

/// So many probes in a row without an answer, each 2 s: longer than any pause of a healthy process on a loaded
/// machine, shorter than the broker's ack deadline.
pub(crate) const SILENCES_MAX: u32 = 3;

/// What to ask a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// `/readyz`.
    Ready,
    /// `/livez`.
    Alive,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Yes.
    Yes,
    /// It answers, but not with yes.
    No,
    /// Nothing in time.
    Silence,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// It hangs: end it, so that it is started again.
    End,
}

/// One service, over all of its lives.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// For so long one that was ready may answer, and never with yes. `None` where a no ends nobody.
    unwell_max: Option<Duration>,
    process: Option<u32>,
    was_ready: bool,
    silences: u32,
    /// Since when no answer was yes, once it was ready.
    unwell_since: Option<Instant>,
}

impl Pulse {
    /// Of one that hangs as well when it answers, and for longer than `max` never with yes.
    pub(crate) fn unwell_at_most(max: Duration) -> Self {
        Self {
            unwell_max: Some(max),
            ..Self::default()
        }
    }

    /// What to ask `process` next.
    pub(crate) fn question(&self, process: u32) -> Question {
        if self.process == Some(process) && self.was_ready {
            Question::Alive
        } else {
            Question::Ready
        }
    }

    /// Takes note of what `process` answered, at `now`.
    pub(crate) fn apply(&mut self, process: u32, answer: Answer, now: Instant) -> Option<Action> {
        if self.process != Some(process) {
            *self = Self {
                unwell_max: self.unwell_max,
                process: Some(process),
                ..Self::default()
            };
        }
        match answer {
            Answer::Yes => {
                (self.was_ready, self.silences, self.unwell_since) = (true, 0, None);
                return None;
            }
            Answer::No => self.silences = 0,
            Answer::Silence if self.was_ready => self.silences += 1,
            Answer::Silence => {}
        }
        if self.silences < SILENCES_MAX && !self.is_unwell_for_too_long(now) {
            return None;
        }
        // The next verdict needs as many again: the signal takes its time.
        (self.silences, self.unwell_since) = (0, None);
        Some(Action::End)
    }

    fn is_unwell_for_too_long(&mut self, now: Instant) -> bool {
        if !self.was_ready {
            return false;
        }
        let since = *self.unwell_since.get_or_insert(now);
        self.unwell_max
            .is_some_and(|max| now.duration_since(since) >= max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_silences_in_a_row_after_it_was_ready_end_it() {
        use Answer::{No, Silence, Yes};
        /// Answers, of which process, and which of them end it.
        type Row = (&'static str, &'static [(u32, Answer)], &'static [usize]);
        let table: [Row; 7] = [
            ("never ready", &[(1, Silence); 9], &[]),
            (
                "never ready, but there",
                &[(1, No), (1, Silence), (1, Silence), (1, Silence)],
                &[],
            ),
            (
                "hangs",
                &[(1, Yes), (1, Silence), (1, Silence), (1, Silence)],
                &[3],
            ),
            (
                "slow, not hung",
                &[
                    (1, Yes),
                    (1, Silence),
                    (1, Silence),
                    (1, Yes),
                    (1, Silence),
                    (1, Silence),
                ],
                &[],
            ),
            (
                "answers with an error: alive",
                &[(1, Yes), (1, Silence), (1, Silence), (1, No), (1, Silence)],
                &[],
            ),
            (
                "the next life is not judged by the last",
                &[
                    (1, Yes),
                    (1, Silence),
                    (1, Silence),
                    (2, Silence),
                    (2, Silence),
                    (2, Silence),
                ],
                &[],
            ),
            (
                "hangs on",
                &[
                    (1, Yes),
                    (1, Silence),
                    (1, Silence),
                    (1, Silence),
                    (1, Silence),
                    (1, Silence),
                    (1, Silence),
                ],
                &[3, 6],
            ),
        ];
        for (name, answers, ends) in table {
            let mut pulse = Pulse::default();
            // However long it takes: it has no limit to how long it may be unwell.
            let mut now = Instant::now();
            let acted = answers.iter().map(|(process, answer)| {
                now += Duration::from_secs(1_000);
                pulse.apply(*process, *answer, now)
            });
            let acted: Vec<_> = acted
                .enumerate()
                .filter_map(|(at, act)| act.map(|_| at))
                .collect();
            assert_eq!(acted, ends, "{name}");
        }
    }

    #[test]
    fn one_that_was_ready_and_says_no_for_longer_than_its_limit_is_ended() {
        /// Seconds, processes and answers (`+`, `-`, or none), and which of them end it.
        type Row = (&'static str, &'static str, &'static [usize]);
        let table: [Row; 6] = [
            ("loads: the supervisor's", "0 1 -,500 1 -,999 1 -", &[]),
            (
                "for ever, and not gone at once",
                "0 1 -,500 1 +,520 1 -,639 1 -,640 1 -,641 1 -,760 1 -,761 1 -",
                &[4, 7],
            ),
            ("now and then", "0 1 +,100 1 -,219 1 +,220 1 -", &[]),
            ("silent in between", "0 1 +,20 1 .,50 1 -,140 1 .", &[3]),
            ("not asked for long", "0 1 +,900 1 -,902 1 +", &[]),
            (
                "the next life has as long as the last",
                "0 1 +,20 1 -,140 2 -,200 2 +,220 2 -,339 2 -,340 2 -",
                &[6],
            ),
        ];
        for (name, answers, ends) in table {
            let mut pulse = Pulse::unwell_at_most(Duration::from_secs(120));
            let begin = Instant::now();
            let acted = answers.split(',').map(|answer| {
                let words: Vec<_> = answer.split(' ').collect();
                let seconds = words[0].parse().expect("seconds");
                let process = words[1].parse().expect("a process");
                let answer = match words[2] {
                    "+" => Answer::Yes,
                    "-" => Answer::No,
                    _ => Answer::Silence,
                };
                pulse.apply(process, answer, begin + Duration::from_secs(seconds))
            });
            let acted: Vec<_> = acted
                .enumerate()
                .filter_map(|(at, act)| act.map(|_| at))
                .collect();
            assert_eq!(acted, ends, "{name}");
        }
    }

    #[test]
    fn a_process_is_asked_whether_it_lives_once_it_was_ready() {
        let mut pulse = Pulse::default();
        assert_eq!(pulse.question(1), Question::Ready);
        pulse.apply(1, Answer::No, Instant::now());
        assert_eq!(pulse.question(1), Question::Ready);
        pulse.apply(1, Answer::Yes, Instant::now());
        assert_eq!(
            (pulse.question(1), pulse.question(2)),
            (Question::Alive, Question::Ready)
        );
    }
}
