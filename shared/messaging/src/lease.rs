//! A message in the hands of its worker: how it lets go of it.

use std::{fmt, sync::Arc, sync::atomic::AtomicBool, sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use tokio::{
    sync::{mpsc::OwnedPermit, watch},
    time::{Instant, sleep, timeout},
};
use tokio_util::task::TaskTracker;

use crate::{bus::Bus, pull::Sequence, work_queue::Command};

/// One try to acknowledge. An answer takes a millisecond; a missing one is a leader change or a lost delivery.
const ACK_TIMEOUT: Duration = Duration::from_secs(1);

/// Between tries.
const ACK_RETRY_DELAY: Duration = Duration::from_millis(250);

/// How long an ack is tried. Twice an election; without an end it would never stop for a delivery that a killed
/// server forgot (75 s seen), with 1 s a quarter of the jobs ran twice after a killed leader (measured).
const ACK_RETRY_MAX: Duration = Duration::from_secs(15);

/// How a message is let go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Settlement {
    /// The server has confirmed its end, or will not.
    Done,
    /// Its work is done; nobody waited for the server to confirm it.
    Ack,
    /// Somebody is to work on it, after the delay.
    Nak(Option<Duration>),
    /// Nobody can ever work on it.
    Term(String),
}

/// What the worker loop knows of a held message.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    /// Changes when the same message is delivered once more; empty once it is gone with its stream.
    pub(crate) reply: String,
    pub(crate) lost: bool,
}

/// What a lease is made of.
pub(crate) struct LeaseParts {
    pub(crate) bus: Bus,
    pub(crate) tracker: TaskTracker,
    pub(crate) sequence: Sequence,
    pub(crate) hold: watch::Receiver<Hold>,
    pub(crate) claimed: Arc<AtomicBool>,
    pub(crate) settle: OwnedPermit<Command>,
}

/// A held message. Its deadline is reset for as long as this lives; dropped without a word, it goes back to the
/// queue at once.
pub struct Lease {
    bus: Bus,
    tracker: TaskTracker,
    sequence: Sequence,
    hold: watch::Receiver<Hold>,
    /// Set by whoever is first: the taker, or the worker loop that takes an untaken message back.
    claimed: Arc<AtomicBool>,
    /// A reserved place, so that letting go never waits and never fails.
    settle: Option<OwnedPermit<Command>>,
    on_drop: Settlement,
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({})", self.sequence)
    }
}

impl Lease {
    /// Whose message it is.
    pub(crate) fn bus(&self) -> &Bus {
        &self.bus
    }

    pub(crate) fn new(parts: LeaseParts) -> Self {
        let LeaseParts {
            bus,
            tracker,
            sequence,
            hold,
            claimed,
            settle,
        } = parts;
        Self {
            bus,
            tracker,
            sequence,
            hold,
            claimed,
            settle: Some(settle),
            on_drop: Settlement::Nak(None),
        }
    }

    /// The subject that acknowledges the message; who knows it can give it back for a dead worker.
    pub fn ack_subject(&self) -> String {
        self.hold.borrow().reply.clone()
    }

    /// Whether the message is probably someone else's by now: no progress ack was answered for a whole ack
    /// deadline. Work that is nearly done may go on, the result's fence decides; other work is better stopped.
    pub fn is_lost(&self) -> bool {
        self.hold.borrow().lost
    }

    /// Returns when [`Lease::is_lost`] becomes true.
    pub async fn lost(&self) {
        let mut hold = self.hold.clone();
        if hold.wait_for(|hold| hold.lost).await.is_err() {
            // The worker loop ended: no one resets the deadline any more.
            tracing::debug!(
                sequence = self.sequence,
                "worker loop ended before its lease"
            );
        }
    }

    /// The work is done and its effect stored: the message goes. The first try is awaited, others follow in the
    /// background. Dropping this future does not take the ack back.
    pub async fn ack(mut self) {
        self.on_drop = Settlement::Ack;
        if self.try_ack().await {
            return self.let_go(Settlement::Done);
        }
        let tracker = self.tracker.clone();
        tracker.spawn(async move {
            let end = Instant::now() + ACK_RETRY_MAX;
            while Instant::now() < end {
                sleep(ACK_RETRY_DELAY).await;
                if self.try_ack().await {
                    break;
                }
            }
            self.let_go(Settlement::Done);
        });
    }

    /// Gives the message back, to be delivered again after `delay`. A lost one is left alone: acks are not bound
    /// to a delivery, so this one would take the message from its new worker.
    pub fn nak(self, delay: Option<Duration>) {
        self.let_go(Settlement::Nak(delay));
    }

    /// The message is somebody else's by now: nothing is said about it, since acks are not bound to a delivery.
    pub fn abandon(self) {
        self.let_go(Settlement::Done);
    }

    /// The message can never be worked on: it goes, and the server tells `reason` to who listens.
    pub fn term(self, reason: &str) {
        self.let_go(Settlement::Term(reason.to_owned()));
    }

    fn let_go(mut self, how: Settlement) {
        self.on_drop = how;
    }

    /// Whether the caller is the one who takes it out of the queue. If not, the message has gone back already.
    pub(crate) fn claim(&mut self) -> bool {
        let first = !self.claimed.swap(true, Ordering::AcqRel);
        if !first {
            self.settle = None;
        }
        first
    }

    /// By request: the client's own double ack takes "no responders" for an answer.
    async fn try_ack(&self) -> bool {
        if self.ack_subject().is_empty() {
            // Gone with its stream: there is nothing to acknowledge.
            return true;
        }
        let request = self
            .bus
            .request(self.ack_subject(), None, Bytes::from_static(b"+ACK"));
        match timeout(ACK_TIMEOUT, request).await {
            Ok(Ok(_)) => true,
            Ok(Err(_)) | Err(_) => {
                tracing::debug!(sequence = self.sequence, "ack is not confirmed yet");
                false
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(permit) = self.settle.take() {
            let how = std::mem::replace(&mut self.on_drop, Settlement::Done);
            permit.send(Command::Settle {
                sequence: self.sequence,
                how,
            });
        }
    }
}
