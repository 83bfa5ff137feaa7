//! A message that comes in: which one it is, and into whose hands it goes.

use std::sync::{Arc, atomic::AtomicBool};

use async_nats::{Message as NatsMessage, jetstream};
use protocol::Tenant;
use tokio::sync::watch;

use super::{HoldEntry, Stored, WorkerLoop, now};
use crate::{
    lease::{Hold, Lease, LeaseParts, Settlement},
    publish::MESSAGE_ID_HEADER,
    pull::{Action, Event, Sequence},
    trace,
    work_queue::{Delivery, Place},
};

impl WorkerLoop {
    pub(super) async fn receive_message(&mut self, message: NatsMessage) {
        let context = jetstream::new(self.bus.client().clone());
        let message = jetstream::Message { message, context };
        let (stored, delivered) = match message.info() {
            Ok(info) => (
                Stored {
                    sequence: info.stream_sequence,
                    at_nanos: info.published.unix_timestamp_nanos(),
                },
                u64::try_from(info.delivered).unwrap_or_default(),
            ),
            Err(error) => {
                // Its deadline gives it to someone who can read the server's subjects.
                tracing::error!(%error, "a message's ack subject cannot be read");
                return;
            }
        };
        let reply = message
            .reply
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let sequence = self.number(stored).await;
        let event = Event::Message {
            sequence,
            reply: reply.clone(),
        };
        let actions = self.state.apply(event, now());
        for action in actions {
            if action == (Action::Deliver { sequence }) {
                self.deliver((sequence, stored), delivered, &reply, &message)
                    .await;
            } else {
                self.act(action).await;
            }
        }
    }

    /// The number of a held message that is delivered again, or a new one.
    async fn number(&mut self, stored: Stored) -> Sequence {
        let held = self
            .holds
            .iter()
            .find(|(_, entry)| entry.stored.sequence == stored.sequence)
            .map(|(number, entry)| (*number, entry.stored == stored));
        match held {
            Some((number, true)) => return number,
            Some((number, false)) => self.void(number).await,
            None => {}
        }
        self.numbered += 1;
        self.numbered
    }

    /// The stream was made anew and the place of a held message is another one's: nothing may be said about it any
    /// more.
    async fn void(&mut self, number: Sequence) {
        tracing::warn!("a held message is gone with its stream");
        if let Some(entry) = self.holds.remove(&number) {
            entry.hold.send_replace(Hold {
                reply: String::new(),
                lost: true,
            });
        }
        self.apply(Event::Settled { sequence: number }).await;
    }

    async fn deliver(
        &mut self,
        (sequence, stored): (Sequence, Stored),
        delivered: u64,
        reply: &str,
        message: &NatsMessage,
    ) {
        let Ok(subject) = self.bus.prefix().parse(&message.subject) else {
            tracing::error!(subject = %message.subject, "message on a subject that is not ours is dropped");
            self.settle(
                sequence,
                Settlement::Term("subject is not one of fresco's".to_owned()),
            )
            .await;
            self.apply(Event::Wanted).await;
            return;
        };
        let permit = self
            .commands
            .upgrade()
            .and_then(|commands| commands.try_reserve_owned().ok());
        let Some(settle) = permit else {
            // The owner is gone, or more is held than `pull` allows: give it back either way.
            return self.settle(sequence, Settlement::Nak(None)).await;
        };
        let (hold, hold_in) = watch::channel(Hold {
            reply: reply.to_owned(),
            lost: false,
        });
        let claimed = Arc::new(AtomicBool::new(false));
        self.holds.insert(
            sequence,
            HoldEntry {
                stored,
                hold,
                claimed: Arc::clone(&claimed),
            },
        );
        let (bus, tracker) = (self.bus.clone(), self.tracker.clone());
        let lease = Lease::new(LeaseParts {
            bus,
            tracker,
            sequence,
            hold: hold_in,
            claimed,
            settle,
        });
        let headers = message.headers.as_ref();
        let context = trace::extract(headers);
        let id = headers.and_then(|headers| headers.get(MESSAGE_ID_HEADER));
        let tenant = headers.and_then(|headers| headers.get(Tenant::HEADER));
        let place = Place {
            id: id.map(ToString::to_string),
            consumer: Arc::clone(&self.consumer),
            sequence: stored.sequence,
        };
        let delivery = Delivery {
            subject,
            payload: message.payload.clone(),
            context,
            // What cannot name one is nobody's: a message is not refused for who counts it.
            tenant: tenant.and_then(|name| name.as_str().parse().ok()),
            delivered,
            place,
            lease,
        };
        if let Err(refused) = self.deliveries.try_send(delivery) {
            // The owner is gone: dropping the delivery settles it.
            drop(refused);
        }
    }
}
