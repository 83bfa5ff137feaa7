//! What the batcher does to an output besides running it: moving its life on, giving it up, answering for it.

use std::{sync::Arc, time::Duration};

use batching::{Others, Policy, is_tried};
use futures::future::join_all;
use messaging::{BusError, Ends, Fence, KnownLife, Membership};
use protocol::{
    DeadLetter, DeadMessage, LifeEvent, OutputId, OutputLife, OutputResult, WorkStage, WorkerId,
};
use service::{clock::unix_millis, exit::chain, telemetry::spans};

use crate::{counters::Counters, prior_cache::PriorCache, request::Request, settle};

/// The last words about attempts of a batcher that stops: a broker that does not answer must not hold it up.
pub(crate) const LAST_WORDS_MAX: Duration = Duration::from_millis(500);

/// A worker's place at the bus.
pub(crate) struct Bench {
    pub(crate) member: Arc<Membership>,
    pub(crate) ends: Ends,
    /// None when it is turned off.
    pub(crate) cache: Option<PriorCache>,
    pub(crate) counters: Counters,
    pub(crate) attempts_max: u32,
    pub(crate) policy: Policy,
}

impl Bench {
    pub(crate) fn worker(&self) -> WorkerId {
        self.member.id.clone()
    }

    /// An engine took `rows` in a call, with `running` on all engines when it began. Counted once it has come back:
    /// before, nobody knows whether the engine was full.
    pub(crate) fn called(&self, rows: usize, running: usize) {
        self.counters.called(rows, running);
        if let Some(cache) = &self.cache {
            cache.missed(rows);
        }
    }

    /// Moves an output's life on; `None` when the event cannot follow.
    pub(crate) async fn advance(
        &self,
        known: &KnownLife,
        event: LifeEvent,
    ) -> Result<Option<KnownLife>, BusError> {
        let output = known.output();
        let bus = &self.member.bus;
        match bus.advance_known(known, event, unix_millis()).await? {
            Ok(known) => Ok(Some(known)),
            Err(refusal) => {
                tracing::info!(%output, %refusal, "event in the output's life is refused");
                self.counters.worker.refused.inc();
                Ok(None)
            }
        }
    }

    /// Signs attempts off that were no failures. Refused, and rightly, once somebody else has started.
    pub(crate) async fn given_back(&self, outputs: Vec<OutputId>) {
        let bus = &self.member.bus;
        let signed_off = outputs.iter().map(|output| {
            let (stage, worker) = (WorkStage::Prior, self.worker());
            bus.advance(
                *output,
                LifeEvent::GivenBack { stage, worker },
                unix_millis(),
            )
        });
        for (output, signed_off) in outputs.iter().zip(join_all(signed_off).await) {
            if let Err(error) = signed_off {
                tracing::debug!(%output, %error, "attempt is not signed off");
            }
        }
    }

    /// Whether another batcher takes work; asked only when one of the lives has used up its attempts.
    pub(crate) async fn others_if_tried(&self, lives: &[OutputLife]) -> Result<Others, BusError> {
        let tried = |life: &OutputLife| is_tried(life, WorkStage::Prior, self.attempts_max);
        let others = !lives.iter().any(tried) || self.member.has_company().await?;
        Ok(others.into())
    }

    /// Whether an output with this `life` is a suspect. In one call with others it is one from its first failure on.
    /// In a call of its own it only becomes one when its next try is the last: most failures are an engine's that was
    /// away for a moment, and everything that ran there would wait for each other's turn.
    pub(crate) fn is_suspect(&self, life: &OutputLife) -> bool {
        let attempts = match self.policy {
            Policy::Batched { .. } => 1,
            Policy::Continuous => self.attempts_max.saturating_sub(1),
        };
        is_tried(life, WorkStage::Prior, attempts)
    }

    /// Puts an output among the dead letters and answers for it. The letter first: with the result the client hears
    /// of it.
    pub(crate) async fn give_up(&self, request: &Request, life: OutputLife) {
        let output = life.output;
        let message = DeadMessage::Ar(request.message_of(output));
        let letter = DeadLetter::new(life, WorkStage::Prior, message, unix_millis());
        loop {
            match self.member.bus.publish_dead_letter(&letter).await {
                Ok(()) => break,
                Err(error) if error.is_final() => {
                    // The result is due all the same: better no replay than no end.
                    tracing::error!(%output, error = %chain(&error), "dead letter is not kept");
                    break;
                }
                Err(error) => settle::pause(output, &error).await,
            }
        }
        tracing::warn!(%output, reason = letter.reason.text, "output is given up");
        self.counters.worker.dead.inc();
        let seed = request.prior_row(output).map(|row| row.seed);
        let result = settle::failure(output, seed, request.accepted_at(), letter.result());
        self.answer(&result).await;
    }

    /// Stores an output's error as its result, however long the broker takes.
    pub(crate) async fn answer(&self, result: &OutputResult) {
        loop {
            match self.member.bus.put_result(result).await {
                Ok(Fence::First) => {
                    if let Err(error) = &result.outcome {
                        spans::fail(&tracing::Span::current(), error.code);
                    }
                    return;
                }
                Ok(Fence::Taken) => {
                    self.counters.worker.suppressed.inc();
                    return tracing::info!(output = %result.output, "another result was first");
                }
                Err(error) => settle::pause(result.output, &error).await,
            }
        }
    }
}
