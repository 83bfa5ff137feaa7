//! Whether a service hangs: a pure rule over the answers to its probes.
//!
//! A process that neither works nor ends holds its place for ever: nothing else restarts it. One that has never been
//! ready is the supervisor's, which knows how long a model may load.

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
    process: Option<u32>,
    was_ready: bool,
    silences: u32,
}

impl Pulse {
    /// What to ask `process` next.
    pub(crate) fn question(&self, process: u32) -> Question {
        if self.process == Some(process) && self.was_ready {
            Question::Alive
        } else {
            Question::Ready
        }
    }

    /// Takes note of the answer of `process`.
    pub(crate) fn apply(&mut self, process: u32, answer: Answer) -> Option<Action> {
        if self.process != Some(process) {
            let process = Some(process);
            *self = Self {
                process,
                ..Self::default()
            };
        }
        match answer {
            Answer::Yes => (self.was_ready, self.silences) = (true, 0),
            Answer::No => self.silences = 0,
            Answer::Silence if self.was_ready => self.silences += 1,
            Answer::Silence => {}
        }
        if self.silences < SILENCES_MAX {
            return None;
        }
        // The next verdict needs as many again: the signal takes its time.
        self.silences = 0;
        Some(Action::End)
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
            let acted = answers
                .iter()
                .map(|(process, answer)| pulse.apply(*process, *answer));
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
        pulse.apply(1, Answer::No);
        assert_eq!(pulse.question(1), Question::Ready);
        pulse.apply(1, Answer::Yes);
        assert_eq!(
            (pulse.question(1), pulse.question(2)),
            (Question::Alive, Question::Ready)
        );
    }
}
