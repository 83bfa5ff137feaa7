//! The worker loop's shell: one task that owns an inbox, its pulls and every held message. What to do is decided in
//! `pull`; here it is done.
//!
//! The inbox lives as long as the loop, so a dropped `next()` cannot lose a message that is on its way: a pull
//! future of the client would, for a whole ack deadline (65 of 300 measured).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_nats::{Message as NatsMessage, Subscriber};
use bytes::Bytes;
use futures::StreamExt;
use protocol::topology::ConsumerSpec;
use tokio::{
    sync::{mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tokio_util::task::TaskTracker;

use crate::{
    bus::{Bus, OutMessage},
    connection::Connection,
    error::BusError,
    inbox::{Incoming, classify},
    lease::{Hold, Settlement},
    pull::{Action, Event, PULL_EXPIRES, PullState, Sequence},
    work_queue::{Command, Delivery},
};

mod arrivals;

/// Where and when the server stored a message. The place alone is not enough: see [`Sequence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stored {
    sequence: u64,
    at_nanos: i128,
}

/// The shell's side of a held message.
struct HoldEntry {
    stored: Stored,
    hold: watch::Sender<Hold>,
    claimed: Arc<AtomicBool>,
}

pub(crate) struct WorkerLoop {
    bus: Bus,
    tracker: TaskTracker,
    consumer: Arc<ConsumerSpec>,
    pull_subject: String,
    pull_body: Bytes,
    inbox: String,
    subscription: Subscriber,
    connection: watch::Receiver<Connection>,
    /// The last connection that the state was told of.
    epoch: u64,
    /// Weak, so that the loop ends when its owner and all leases are gone.
    commands: mpsc::WeakSender<Command>,
    deliveries: mpsc::Sender<Delivery>,
    state: PullState,
    holds: HashMap<Sequence, HoldEntry>,
    /// Numbers given to messages so far.
    numbered: Sequence,
    closers: Vec<oneshot::Sender<()>>,
}

impl WorkerLoop {
    pub(crate) async fn open(
        bus: &Bus,
        spec: &ConsumerSpec,
        tracker: &TaskTracker,
        (commands, deliveries): (mpsc::WeakSender<Command>, mpsc::Sender<Delivery>),
    ) -> Result<Self, BusError> {
        let what = || format!("consumer {}/{}", spec.stream, spec.name);
        let info = bus.consumer_info(spec).await?;
        let info = info.ok_or_else(|| BusError::Missing { what: what() })?;
        let inbox = bus.client().new_inbox();
        let subscribed = bus.client().subscribe(format!("{inbox}.*")).await;
        let subscription = subscribed.map_err(|source| BusError::Unavailable {
            what: what(),
            source: source.into(),
        })?;
        Ok(Self {
            bus: bus.clone(),
            tracker: tracker.clone(),
            consumer: Arc::new(spec.clone()),
            pull_subject: format!("$JS.API.CONSUMER.MSG.NEXT.{}.{}", spec.stream, spec.name),
            pull_body: format!("{{\"batch\":1,\"expires\":{}}}", PULL_EXPIRES.as_nanos()).into(),
            inbox,
            subscription,
            connection: bus.connection(),
            epoch: bus.connection().borrow().epoch,
            commands,
            deliveries,
            state: PullState::new(info.config.ack_wait),
            holds: HashMap::new(),
            numbered: 0,
            closers: Vec::new(),
        })
    }

    pub(crate) async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut commanded = true;
        while !self.state.is_finished() {
            let deadline = self.state.next_deadline().map(Instant::from_std);
            tokio::select! {
                incoming = self.subscription.next() => match incoming {
                    Some(message) => self.receive(message).await,
                    None => return self.lose_all(),
                },
                command = commands.recv(), if commanded => match command {
                    Some(command) => self.command(command).await,
                    None => {
                        commanded = false;
                        self.apply(Event::Closing).await;
                    }
                },
                changed = self.connection.changed() => match changed {
                    Ok(()) => self.connection_changed().await,
                    Err(_) => return self.lose_all(),
                },
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    self.apply(Event::Deadline).await;
                }
            }
            self.answer_closers().await;
        }
        self.answer_closers().await;
    }

    async fn command(&mut self, command: Command) {
        match command {
            Command::Wanted => self.apply(Event::Wanted).await,
            Command::Settle { sequence, how } => self.settle(sequence, how).await,
            Command::Close { closed } => {
                self.closers.push(closed);
                self.apply(Event::Closing).await;
            }
        }
    }

    async fn connection_changed(&mut self) {
        let now = *self.connection.borrow_and_update();
        if !now.up {
            self.apply(Event::Disconnected).await;
        } else if now.epoch != self.epoch {
            self.epoch = now.epoch;
            self.apply(Event::Connected).await;
        }
    }

    async fn receive(&mut self, message: NatsMessage) {
        match classify(&self.inbox, &message) {
            Incoming::Message => self.receive_message(message).await,
            Incoming::PullExpired(number) => self.apply(Event::PullExpired { number }).await,
            Incoming::PullRefused(number) => {
                tracing::debug!(number, reason = message.description, "pull was refused");
                self.apply(Event::PullRefused { number }).await;
            }
            Incoming::ProgressAnswered(number) => {
                self.apply(Event::ProgressAnswered { number }).await
            }
            Incoming::Unknown => {
                tracing::debug!(subject = %message.subject, "unexpected message in the inbox")
            }
        }
    }

    async fn apply(&mut self, event: Event) {
        for action in self.state.apply(event, now()) {
            self.act(action).await;
        }
    }

    /// Carries out one action. [`Action::Deliver`] only ever answers a message, see `receive_message`.
    async fn act(&mut self, action: Action) {
        match action {
            Action::Pull { number } => {
                let (subject, payload) = (self.pull_subject.clone(), self.pull_body.clone());
                let reply = Some(format!("{}.{number}", self.inbox));
                self.bus
                    .send(OutMessage {
                        subject,
                        reply,
                        headers: None,
                        payload,
                    })
                    .await;
            }
            Action::Nak { reply } => {
                tracing::debug!(reply, "message came while none was wanted and goes back");
                self.send_ack(reply, "-NAK".to_owned(), None).await;
            }
            Action::Progress { number, reply } => {
                let answer_to = Some(format!("{}.p{number}", self.inbox));
                self.send_ack(reply, "+WPI".to_owned(), answer_to).await;
            }
            Action::Adopt { sequence, reply } => {
                tracing::debug!(sequence, "held message was delivered again");
                if let Some(entry) = self.holds.get(&sequence) {
                    entry
                        .hold
                        .send_modify(|hold| *hold = Hold { reply, lost: false });
                }
            }
            Action::Lost { sequence } => {
                tracing::warn!(
                    sequence,
                    "no progress of a held message reached the server for its ack deadline"
                );
                if let Some(entry) = self.holds.get(&sequence) {
                    entry.hold.send_modify(|hold| hold.lost = true);
                }
            }
            Action::Withdraw { sequence } => self.withdraw(sequence).await,
            Action::Deliver { sequence } => {
                tracing::error!(sequence, "a delivery without a message")
            }
        }
    }

    async fn withdraw(&mut self, sequence: Sequence) {
        let untaken = self
            .holds
            .get(&sequence)
            .is_some_and(|entry| !entry.claimed.swap(true, Ordering::AcqRel));
        if untaken {
            tracing::debug!(sequence, "delivered message was not taken and goes back");
            Box::pin(self.settle(sequence, Settlement::Nak(None))).await;
        } else {
            Box::pin(self.apply(Event::Taken { sequence })).await;
        }
    }

    async fn settle(&mut self, sequence: Sequence, how: Settlement) {
        let hold = self
            .holds
            .remove(&sequence)
            .map(|entry| entry.hold.borrow().clone());
        let (reply, lost) = match hold {
            Some(hold) => (Some(hold.reply), hold.lost),
            None => (self.state.reply(sequence), false),
        };
        let body = match how {
            Settlement::Done => None,
            Settlement::Ack => Some("+ACK".to_owned()),
            // It may be another worker's: that one's message must not be taken from it.
            Settlement::Nak(_) if lost => None,
            Settlement::Nak(None) => Some("-NAK".to_owned()),
            Settlement::Nak(Some(delay)) => {
                Some(format!("-NAK {{\"delay\":{}}}", delay.as_nanos()))
            }
            Settlement::Term(reason) => Some(format!("+TERM {reason}")),
        };
        if let (Some(reply), Some(body)) = (reply, body) {
            self.send_ack(reply, body, None).await;
        }
        Box::pin(self.apply(Event::Settled { sequence })).await;
    }

    async fn send_ack(&self, subject: String, body: String, reply: Option<String>) {
        self.bus
            .send(OutMessage {
                subject,
                reply,
                headers: None,
                payload: body.into(),
            })
            .await;
    }

    async fn answer_closers(&mut self) {
        if self.closers.is_empty() || !self.state.is_closed_to_messages() {
            return;
        }
        if let Err(error) = self.bus.flush().await {
            tracing::warn!(%error, "messages given back may not have reached the broker");
        }
        for closer in self.closers.drain(..) {
            if closer.send(()).is_err() {
                tracing::debug!("nobody waits for the worker loop to close");
            }
        }
    }

    /// The connection is closed for good: nothing of ours can be reported any more.
    fn lose_all(&mut self) {
        for entry in self.holds.values() {
            entry.hold.send_modify(|hold| hold.lost = true);
        }
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}
