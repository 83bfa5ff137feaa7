//! Which engines are trusted. One that failed too often in a row gets no rows until a self-test succeeds; a batcher
//! without any that is trusted holds nothing.

use std::sync::Arc;

use batching::{Breaker, Event, self_test_pauses};
use protocol::{JobError, OutputId};
use tokio::time::{sleep, timeout};

use super::{Driver, hands::News};
use crate::engine::{EngineError, PriorEngine};

struct Engine {
    engine: Arc<dyn PriorEngine>,
    breaker: Breaker,
    /// Why it gets no rows.
    down: Option<String>,
    /// Self-tests since it is down.
    tests: usize,
}

/// Every engine of this batcher.
pub(super) struct Engines {
    engines: Vec<Engine>,
    /// The fleet was told that all are down.
    told: bool,
}

impl Engines {
    pub(super) fn new(engines: Vec<Arc<dyn PriorEngine>>, failures_max: u32) -> Self {
        let engine = |engine| Engine {
            engine,
            breaker: Breaker::new(failures_max),
            down: None,
            tests: 0,
        };
        Self {
            engines: engines.into_iter().map(engine).collect(),
            told: false,
        }
    }

    /// The engine in this place of the limits' slots.
    pub(super) fn engine(&self, engine: usize) -> Arc<dyn PriorEngine> {
        Arc::clone(&self.engines[engine].engine)
    }

    pub(super) fn succeeded(&mut self, engine: usize) {
        self.engines[engine].breaker.succeeded();
    }

    pub(super) fn all_down(&self) -> bool {
        self.engines.iter().all(|engine| engine.down.is_some())
    }

    /// Whether the last engine went down just now.
    pub(super) fn newly_all_down(&mut self) -> bool {
        let newly = self.all_down() && !self.told;
        self.told |= newly;
        newly
    }

    /// Why the batcher takes no work.
    fn reason(&self) -> String {
        let reasons = self
            .engines
            .iter()
            .filter_map(|engine| engine.down.as_deref());
        reasons.collect::<Vec<_>>().join("; ")
    }
}

impl Driver {
    /// `engine` failed at `output`. What runs there goes to other engines.
    pub(super) fn failed(&mut self, engine: usize, output: OutputId) {
        let state = &mut self.engines.engines[engine];
        state.breaker.failed(output);
        let Some(failures) = state.breaker.is_open().filter(|_| state.down.is_none()) else {
            return;
        };
        let why = format!("the engine failed {failures} times in a row");
        tracing::error!(
            engine,
            reason = why,
            "giving it no more rows until a self-test succeeds"
        );
        (state.down, state.tests) = (Some(why), 0);
        self.bench.counters.worker.quarantines.inc();
        self.apply(Event::Down { engine });
        let there = self.running.values();
        for running in there.filter(|running| running.engine == engine) {
            running.stop.cancel();
        }
        self.test(engine);
    }

    fn test(&mut self, engine: usize) {
        let state = &mut self.engines.engines[engine];
        let mut pauses = self_test_pauses().skip(state.tests);
        let pause = pauses.next().expect("the pauses never end");
        state.tests += 1;
        let (tested, stall_max) = (Arc::clone(&state.engine), self.retry.stall_max);
        self.hands.task(async move {
            sleep(pause).await;
            // An engine that hangs heals with its process, if at all.
            let tested = match timeout(stall_max, tested.self_test()).await {
                Ok(tested) => tested,
                Err(elapsed) => Err(EngineError::Gone(elapsed.into())),
            };
            News::Tested { engine, tested }
        });
    }

    pub(super) fn tested(
        &mut self,
        engine: usize,
        tested: Result<Result<(), JobError>, EngineError>,
    ) -> Result<(), EngineError> {
        let text = match tested {
            Ok(Ok(())) => {
                self.heal(engine);
                return Ok(());
            }
            Ok(Err(error)) => error.text,
            Err(error @ (EngineError::Full | EngineError::Stopped)) => error.to_string(),
            Err(error @ EngineError::Gone(_)) => return Err(error),
        };
        tracing::error!(engine, error = text, "self-test failed");
        let state = &mut self.engines.engines[engine];
        if let Some(why) = &mut state.down {
            let first = why.split("; self-test: ").next().unwrap_or_default();
            *why = format!("{first}; self-test: {text}");
        }
        if self.engines.told {
            self.tell_quarantine();
        }
        self.test(engine);
        Ok(())
    }

    fn heal(&mut self, engine: usize) {
        tracing::info!(engine, "self-test succeeded, giving it rows again");
        let state = &mut self.engines.engines[engine];
        state.breaker.succeeded();
        state.down = None;
        if std::mem::take(&mut self.engines.told) {
            self.tell(None);
        }
        self.apply(Event::Up { engine });
    }

    pub(super) fn tell_quarantine(&self) {
        self.tell(Some(self.engines.reason()));
    }

    /// In its health and to the fleet.
    fn tell(&self, reason: Option<String>) {
        self.health.set_quarantine(reason.as_deref());
        self.bench.member.presence.quarantine(reason);
    }
}
