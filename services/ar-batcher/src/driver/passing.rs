//! Outputs that came with their prior tokens: they need no engine, only room at the denoise stage.

use std::sync::Arc;

use batching::{Action, BatchId, Event, Row};
use protocol::{ErrorCode, JobError, OutputId};
use service::clock::unix_millis;
use tokio::time::Instant;

use super::Driver;
use crate::{
    prior_cache::NamedPrior,
    request::{BatchTimes, Doing, Made},
    settle,
};

impl Driver {
    pub(super) fn pass(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for action in self.passing.apply(event, Instant::now().into_std()) {
                match action {
                    Action::Run { batch, rows, .. } => {
                        self.ahead.passed();
                        if !self.pass_on(batch, &rows) {
                            events.push(Event::Finished(batch));
                        }
                    }
                    // Only an engine that says it is full makes a row wait for a time.
                    Action::WakeAt(_) => {}
                }
            }
        }
    }

    /// Fans out the row, a single one, if somebody needs it still; says whether.
    fn pass_on(&mut self, batch: BatchId, rows: &[Row]) -> bool {
        let Some(&Row { output, size, .. }) = rows.first() else {
            return false;
        };
        let now = unix_millis();
        let Some(held) = self.held_of(output) else {
            return false;
        };
        if !held.needs(output) || !held.request.in_time(now) {
            return false;
        }
        let known = held.output(output).map(|open| open.known.clone());
        let (Some(known), Some(stored)) = (known, held.request.prior().cloned()) else {
            return false;
        };
        let bench = Arc::clone(&self.bench);
        self.hand_over(output, Doing::Passing(batch), async move |request| {
            if !stored.tokens.fits(size) {
                return settle::refuse(&bench, &request, output, of_another_size(output)).await;
            }
            let NamedPrior { prior, id } = stored.into();
            let made = Made {
                prior,
                id,
                times: BatchTimes {
                    started_at: now,
                    finished_at: now,
                },
            };
            settle::fan_out(&bench, &request, known, made).await
        });
        true
    }
}

fn of_another_size(output: OutputId) -> JobError {
    tracing::warn!(%output, "prior tokens came that do not fit the size");
    let text = "the prior tokens are of a picture of another size";
    JobError::new(ErrorCode::PriorTokensInvalid, text)
}
