//! What the batcher does to an output besides running it: moving its life on, giving it up, answering for it.

use std::time::Duration;

use batching::{Others, is_tried};
use futures::future::join_all;
use messaging::{BusError, Fence, Membership};
use protocol::{DeadLetter, DeadMessage, LifeEvent, OutputId, OutputLife, OutputResult, WorkStage};
use service::{clock::unix_millis, exit::chain};

use crate::{
    counters::Counters,
    request::{Held, Rest},
    settle::{self, REST},
};

/// The last words about attempts of a batcher that stops: a broker that does not answer must not hold it up.
pub(crate) const LAST_WORDS_MAX: Duration = Duration::from_millis(500);

/// A worker's place at the bus.
pub(crate) struct Bench<'a> {
    pub(crate) member: &'a Membership,
    pub(crate) counters: Counters,
    pub(crate) attempts_max: u32,
}

impl Bench<'_> {
    /// Moves an output's life on; says whether the event could follow.
    pub(crate) async fn advance(
        &self,
        output: OutputId,
        event: LifeEvent,
    ) -> Result<bool, BusError> {
        Ok(self.advanced(output, event).await?.is_some())
    }

    /// The same with the life that follows.
    pub(crate) async fn advanced(
        &self,
        output: OutputId,
        event: LifeEvent,
    ) -> Result<Option<OutputLife>, BusError> {
        let bus = &self.member.bus;
        match bus.advance(output, event, unix_millis()).await? {
            Ok(life) => Ok(Some(life)),
            Err(refusal) => {
                tracing::info!(%output, %refusal, "event in the output's life is refused");
                self.counters.refused.inc();
                Ok(None)
            }
        }
    }

    /// Signs attempts off that were no failures. Refused, and rightly, once somebody else has started.
    pub(crate) fn given_back(
        &self,
        outputs: Vec<OutputId>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (bus, worker) = (self.member.bus.clone(), self.member.id.clone());
        async move {
            let signed_off = outputs.iter().map(|output| {
                let (stage, worker) = (WorkStage::Prior, worker.clone());
                let event = LifeEvent::GivenBack { stage, worker };
                bus.advance(*output, event, unix_millis())
            });
            for (output, signed_off) in outputs.iter().zip(join_all(signed_off).await) {
                if let Err(error) = signed_off {
                    tracing::debug!(%output, %error, "attempt is not signed off");
                }
            }
        }
    }

    /// Whether another batcher takes work; asked only when one of the lives has used up its attempts.
    pub(crate) async fn others_if_tried(&self, lives: &[OutputLife]) -> Result<Others, BusError> {
        let tried = |life| is_tried(life, WorkStage::Prior, self.attempts_max);
        let others = !lives.iter().any(tried) || self.member.has_company().await?;
        Ok(others.into())
    }

    /// Puts an output among the dead letters and answers for it. The letter first: with the result the client hears
    /// of it.
    pub(crate) async fn give_up(&self, held: &mut Held, life: OutputLife) {
        let output = life.output;
        let message = DeadMessage::Ar(held.message_of(output));
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
        self.counters.dead.inc();
        let seed = held.prior_row(output).map(|row| row.seed);
        let result = settle::failure(output, seed, held.accepted_at(), letter.result());
        self.answer(&result).await;
        held.settle(output);
    }

    /// Stores an output's error as its result, however long the broker takes.
    pub(crate) async fn answer(&self, result: &OutputResult) {
        loop {
            match self.member.bus.put_result(result).await {
                Ok(Fence::First) => return,
                Ok(Fence::Taken) => {
                    self.counters.suppressed.inc();
                    return tracing::info!(output = %result.output, "another result was first");
                }
                Err(error) => settle::pause(result.output, &error).await,
            }
        }
    }

    /// Lets the message go when nothing of it is left here.
    pub(crate) async fn keep(&self, held: Held) -> Option<Held> {
        match held.rest() {
            Rest::Keep => return Some(held),
            Rest::Ack => held.lease.ack().await,
            Rest::GiveBack => held.lease.nak(Some(REST)),
            Rest::LetGo => held.lease.abandon(),
        }
        None
    }
}
