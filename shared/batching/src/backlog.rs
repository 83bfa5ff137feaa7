//! How far the AR stage runs ahead of the denoisers: far enough to keep them fed, and no further, because what waits
//! behind the AR stage has no order any more. Jobs wait where priority acts: in front of it.
//!
//! The broker is asked now and then how many outputs are at the denoise stage. In between the estimate follows what
//! is seen from here: outputs that this batcher fanned out, and results that are announced. Another batcher's
//! fan-outs come with the next look, and an error that ends an output before the denoise stage is taken for an end
//! there; both are wrong for one look at most.
//!
//! Rows on the engine are not counted: they are the engine's to keep full. So the denoise stage holds at most
//! [`Backlog::ahead_max`] outputs and what was in flight when it got full.

/// Outputs at the denoise stage for each denoiser: the one being painted and two waiting. One waiting would do if the
/// AR stage had rows to give at every moment; its rows come in waves when they start together.
pub const AHEAD_PER_DENOISER_MAX: u64 = 3;

/// What a look at the broker saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Look {
    /// Outputs that wait for a denoiser or are with one.
    pub outputs: u64,
    /// Denoisers that take work.
    pub denoisers: u64,
}

/// What had been seen from here when a look began.
#[derive(Debug, Clone, Copy)]
pub struct Mark {
    fanned_out: u64,
    ended: u64,
}

/// Estimates how many outputs are at the denoise stage.
#[derive(Debug, Clone)]
pub struct Backlog {
    /// The operator's bound, instead of the rule's.
    outputs_max: Option<u64>,
    look: Look,
    /// When `look` began.
    mark: Mark,
    fanned_out: u64,
    ended: u64,
}

impl Backlog {
    /// Before the first look: nothing there, and one denoiser. `outputs_max` replaces [`AHEAD_PER_DENOISER_MAX`] for
    /// each denoiser.
    pub fn new(outputs_max: Option<u64>) -> Self {
        Self {
            outputs_max,
            look: Look {
                outputs: 0,
                denoisers: 1,
            },
            mark: Mark {
                fanned_out: 0,
                ended: 0,
            },
            fanned_out: 0,
            ended: 0,
        }
    }

    /// To be taken when a look begins: what happens while it is under way may be missing from it.
    pub const fn mark(&self) -> Mark {
        Mark {
            fanned_out: self.fanned_out,
            ended: self.ended,
        }
    }

    /// What the look that began at `mark` saw.
    pub const fn looked(&mut self, mark: Mark, look: Look) {
        (self.mark, self.look) = (mark, look);
    }

    /// `outputs` went from here to the denoise stage.
    pub const fn fanned_out(&mut self, outputs: u64) {
        self.fanned_out += outputs;
    }

    /// `outputs` ended, anywhere.
    pub const fn ended(&mut self, outputs: u64) {
        self.ended += outputs;
    }

    /// Outputs at the denoise stage, as far as is known here.
    pub const fn estimate(&self) -> u64 {
        let came = self.look.outputs + (self.fanned_out - self.mark.fanned_out);
        came.saturating_sub(self.ended - self.mark.ended)
    }

    /// Most outputs at the denoise stage before no more rows start.
    pub fn ahead_max(&self) -> u64 {
        let by_rule = AHEAD_PER_DENOISER_MAX * self.look.denoisers.max(1);
        self.outputs_max.unwrap_or(by_rule)
    }

    /// Whether more rows may start.
    pub fn has_room(&self) -> bool {
        self.estimate() < self.ahead_max()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(outputs: u64, denoisers: u64) -> Backlog {
        let mut backlog = Backlog::new(None);
        let look = Look { outputs, denoisers };
        backlog.looked(backlog.mark(), look);
        backlog
    }

    #[test]
    fn each_denoiser_has_one_output_and_two_waiting() {
        // outputs at the stage, denoisers → whether more may start
        let table = [
            (0, 0, true),
            (2, 0, true),
            (3, 0, false),
            (3, 1, false),
            (5, 2, true),
            (6, 2, false),
            (41, 14, true),
            (42, 14, false),
        ];
        for (outputs, denoisers, room) in table {
            let backlog = looked(outputs, denoisers);
            assert_eq!(backlog.has_room(), room, "{outputs} at {denoisers}");
        }
    }

    #[test]
    fn between_looks_it_follows_what_comes_and_ends() {
        let mut backlog = looked(2, 1);
        assert!(backlog.has_room());
        backlog.fanned_out(1);
        assert!(!backlog.has_room());
        backlog.ended(1);
        assert!(backlog.has_room());
        // Ends of outputs that were never there.
        backlog.ended(5);
        assert_eq!(backlog.estimate(), 0);
    }

    #[test]
    fn what_happens_during_a_look_is_not_forgotten() {
        let mut backlog = looked(0, 1);
        backlog.fanned_out(2);
        let mark = backlog.mark();
        backlog.fanned_out(1);
        let look = Look {
            outputs: 2,
            denoisers: 1,
        };
        backlog.looked(mark, look);
        assert_eq!(backlog.estimate(), 3);
    }

    #[test]
    fn an_operators_bound_replaces_the_rule() {
        let mut backlog = Backlog::new(Some(1));
        assert!(backlog.has_room());
        backlog.fanned_out(1);
        assert!(!backlog.has_room());
    }
}
