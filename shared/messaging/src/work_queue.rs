//! The owner's end of the worker loop: messages asked for one at a time.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use opentelemetry::Context;
use protocol::{Subject, Tenant, topology::ConsumerSpec};
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::TaskTracker;

use crate::{
    bus::Bus,
    error::BusError,
    lease::{Lease, Settlement},
    pull::{HELD_MAX, Sequence},
    worker_loop::WorkerLoop,
};

/// A reserved place for each held message's end, and some for the queue's owner.
const COMMANDS_MAX: usize = HELD_MAX + 8;

/// The longest [`WorkQueue::close`] takes, beyond the broker's own slowness; for the grace of a process.
pub const CLOSE_MAX: Duration = Duration::from_secs(3);

/// What leases and the owner tell the loop.
pub(crate) enum Command {
    Wanted,
    Settle { sequence: Sequence, how: Settlement },
    Close { closed: oneshot::Sender<()> },
}

/// One message to work on.
#[derive(Debug)]
pub struct Delivery {
    /// Where it was published.
    pub subject: Subject,
    /// Its bytes, not decoded.
    pub payload: Bytes,
    /// The publisher's trace context.
    pub context: Context,
    /// Whose the work on it is, for who counts it; `None` too where its sender was of a version that did not tell.
    pub tenant: Option<Tenant>,
    /// How often the server has delivered it, this time included. Messages given back count too.
    pub delivered: u64,
    /// Which message it is to the broker.
    pub(crate) place: Place,
    /// The hold on it.
    pub lease: Lease,
}

/// Where the broker has a message, and what it knows it by.
#[derive(Debug)]
pub(crate) struct Place {
    /// Under which it drops a repeat; one that was stored without has none.
    pub(crate) id: Option<String>,
    /// The queue that it came from.
    pub(crate) consumer: Arc<ConsumerSpec>,
    /// In the consumer's stream.
    pub(crate) sequence: u64,
}

/// Takes messages from one consumer, one pull at a time and only when asked to.
#[derive(Debug)]
pub struct WorkQueue {
    commands: mpsc::Sender<Command>,
    deliveries: mpsc::Receiver<Delivery>,
    /// The loop knows that a message is wanted.
    asked: bool,
}

impl WorkQueue {
    /// Opens the consumer. It has to exist: services never create.
    pub async fn open(
        bus: &Bus,
        spec: &ConsumerSpec,
        tracker: &TaskTracker,
    ) -> Result<Self, BusError> {
        let (commands, commands_in) = mpsc::channel(COMMANDS_MAX);
        // One message at a time: the loop delivers none before the last was received.
        let (deliveries_out, deliveries) = mpsc::channel(1);
        let ends = (commands.downgrade(), deliveries_out);
        let worker = WorkerLoop::open(bus, spec, tracker, ends).await?;
        tracker.spawn(worker.run(commands_in));
        Ok(Self {
            commands,
            deliveries,
            asked: false,
        })
    }

    /// The next message. Cancellation safe: one that came after this future was dropped is returned by the next
    /// call, or given back after a second. Waits for ever once the connection is closed.
    pub async fn next(&mut self) -> Delivery {
        loop {
            if !self.asked {
                if self.commands.send(Command::Wanted).await.is_err() {
                    std::future::pending::<()>().await;
                }
                self.asked = true;
            }
            // From here on to the return nothing waits: a message that is received is returned.
            let Some(mut delivery) = self.deliveries.recv().await else {
                return std::future::pending().await;
            };
            self.asked = false;
            if delivery.lease.claim() {
                return delivery;
            }
        }
    }

    /// Stops pulling and gives back what nobody has taken; waits, at most 3 s, until no message can come any more.
    /// Deliveries in hand stay in hand.
    pub async fn close(self) {
        let (closed, wait) = oneshot::channel();
        // The loop has ended when it is not there to listen or to answer: just as well.
        if self.commands.send(Command::Close { closed }).await.is_ok() && wait.await.is_err() {
            tracing::debug!("worker loop ended before it was closed");
        }
    }
}
