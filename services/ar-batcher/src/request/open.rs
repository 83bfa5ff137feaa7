//! An output of a held request: what is being done for it, and the span of that.

use batching::BatchId;
use messaging::{EndWatch, KnownLife};
use protocol::trace::{attribute, span};
use tracing::Span;

/// The span of a stage of one output, where a collector gets it.
macro_rules! stage {
    ($request:expr, $name:expr, $index:expr) => {
        tracing::debug_span!(parent: $request, $name, { attribute::OUTPUT_INDEX } = $index)
    };
}

/// An output that needs prior tokens.
pub(crate) struct OpenOutput {
    /// Tells when it has ended.
    pub(crate) watch: EndWatch,
    /// What it has been through, as far as is known here.
    pub(crate) known: KnownLife,
    /// Earlier attempts failed or vanished.
    pub(crate) suspect: bool,
    /// Read by the request that holds it; changed by [`OpenOutput::now`], so that the span follows.
    pub(super) doing: Doing,
    /// Of what is being done.
    stage: Span,
}

impl OpenOutput {
    /// Without a span, which its request has to give: [`OpenOutput::now`] follows.
    pub(crate) fn new(known: KnownLife, watch: EndWatch, suspect: bool, doing: Doing) -> Self {
        let stage = Span::none();
        Self {
            watch,
            known,
            suspect,
            doing,
            stage,
        }
    }

    /// From now on this is being done for it.
    pub(crate) fn now(&mut self, doing: Doing, request: &Span) {
        let index = i64::from(self.known.output().index.get());
        self.stage = match doing {
            Doing::Waiting { .. } => stage!(request, span::AR_WAIT, index),
            Doing::Running(_) => stage!(request, span::AR_RUN, index),
            Doing::Settling | Doing::Passing(_) => stage!(request, span::AR_SETTLE, index),
            Doing::Parked => Span::none(),
        };
        self.doing = doing;
    }

    /// Its life says that it waits.
    pub(crate) fn waiting_is_told(&mut self) {
        self.doing = Doing::Waiting { told: true };
    }

    /// What is being done for it.
    pub(crate) const fn doing(&self) -> Doing {
        self.doing
    }

    /// The span of what is being done for it.
    pub(crate) const fn stage(&self) -> &Span {
        &self.stage
    }
}

/// What is being done for an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It waits for the engine. Whether its life says so is looked after later: most wait for milliseconds.
    Waiting { told: bool },
    /// It is in this batch, on an engine.
    Running(BatchId),
    /// It is being fanned out or answered: what comes of it is told by the task that does it, and by nobody else.
    Settling,
    /// The same, in a batch of those that need no engine.
    Passing(BatchId),
    /// Not this worker's to try: it goes back when the request has nothing else left here.
    Parked,
}

impl Doing {
    /// Whether a task tells what comes of the output.
    pub(crate) const fn tells(self) -> bool {
        matches!(self, Self::Settling | Self::Passing(_))
    }
}
