//! The rules of the worker loop, pure: what happened, and when → what to do. No runtime, no client library.
//!
//! Why not the client's own pull streams: they prefetch, pull again on their own while the worker is busy, and lose
//! a message when a pull future is dropped (measured). The rules here:
//!
//! 1. One pull request outstanding, for one message, and only while a taker waits.
//! 2. A message that comes while none is wanted goes back at once. This cures every stale pull a paused or changed
//!    leader may answer late.
//! 3. The message that is held already, delivered again, is not a second one: its newer reply subject is adopted.
//! 4. Each held message has its deadline reset by a progress ack, several times per deadline. Only an answered
//!    progress ack counts. When none was answered for a whole deadline, the message is probably someone else's:
//!    its holder is told, and the progress acks end, since they would keep it from being taken from a dead one.
//! 5. A delivered message that nobody takes within [`UNTAKEN_MAX`] goes back.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use protocol::limits::PROGRESS_PER_ACK_WAIT;

/// How long the server keeps a pull request. Short, because closing waits for it: unsubscribing instead would lose
/// a message on its way for a whole ack deadline (9 of 400 measured). A pull costs the server some 30 µs.
pub(crate) const PULL_EXPIRES: Duration = Duration::from_secs(2);

/// Without any answer for this long, the request or its answer is lost.
const PULL_LOST_AFTER: Duration = Duration::from_secs(3);

/// Pauses after a pull was refused (no leader, no consumer, server leaving).
const PULL_DELAY_MIN: Duration = Duration::from_millis(20);
const PULL_DELAY_MAX: Duration = Duration::from_millis(250);

/// How long a delivered message waits for its taker: far longer than a `select!` needs to come round again, far
/// shorter than the work of a worker that went busy with something else.
const UNTAKEN_MAX: Duration = Duration::from_secs(1);

/// Most messages one queue holds at once: an AR batch of 128 requests on the engine and the next one waiting.
pub const HELD_MAX: usize = 256;

/// The loop's own number of a message, the same through redeliveries. Not the stream's: a stream that was made anew
/// counts from 1 again, and its first message is not the one that was held under that number.
pub(crate) type Sequence = u64;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    /// A taker waits.
    Wanted,
    /// A message came, acknowledged by `reply`.
    Message { sequence: Sequence, reply: String },
    /// The server ended pull `number`: it ran out.
    PullExpired { number: u64 },
    /// The server refused pull `number`, or nobody was there to take it.
    PullRefused { number: u64 },
    /// The server answered progress ack `number`.
    ProgressAnswered { number: u64 },
    /// The taker has the message in hand.
    Taken { sequence: Sequence },
    /// Its holder is done with it, one way or another.
    Settled { sequence: Sequence },
    /// The connection is there again, with none of the old one's requests.
    Connected,
    /// The connection is gone.
    Disconnected,
    /// No more work.
    Closing,
    /// [`PullState::next_deadline`] has come.
    Deadline,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask for one message.
    Pull { number: u64 },
    /// Hand the message that just came to the taker.
    Deliver { sequence: Sequence },
    /// Give a message back to the server.
    Nak { reply: String },
    /// Reset the deadline of a held message.
    Progress { number: u64, reply: String },
    /// The held message is acknowledged by another subject from now on.
    Adopt { sequence: Sequence, reply: String },
    /// Tell the holder that the message is probably someone else's.
    Lost { sequence: Sequence },
    /// Take the message back from the queue between us and the taker, if it is still there: then
    /// [`Event::Settled`], else [`Event::Taken`] follows.
    Withdraw { sequence: Sequence },
}

/// A message of ours.
#[derive(Debug)]
struct Held {
    reply: String,
    /// While it waits for its taker.
    take_by: Option<Instant>,
    /// When the server is known to have reset its deadline, at the latest.
    confirmed_at: Instant,
    progress_at: Instant,
    /// Progress acks without an answer yet, oldest first; at most [`PROGRESS_PER_ACK_WAIT`] + 1.
    unanswered: Vec<(u64, Instant)>,
    lost: bool,
}

#[derive(Debug, Clone, Copy)]
struct Outstanding {
    number: u64,
    lost_at: Instant,
}

/// The state of one consumer's worker loop.
#[derive(Debug)]
pub(crate) struct PullState {
    ack_wait: Duration,
    wanted: bool,
    closing: bool,
    connected: bool,
    outstanding: Option<Outstanding>,
    /// Not before this, after a refusal.
    pull_at: Option<Instant>,
    pull_delay: Duration,
    pulls: u64,
    progresses: u64,
    held: BTreeMap<Sequence, Held>,
}

impl PullState {
    pub(crate) fn new(ack_wait: Duration) -> Self {
        Self {
            ack_wait,
            wanted: false,
            closing: false,
            connected: true,
            outstanding: None,
            pull_at: None,
            pull_delay: PULL_DELAY_MIN,
            pulls: 0,
            progresses: 0,
            held: BTreeMap::new(),
        }
    }

    /// What to do about `event` at `now`.
    pub(crate) fn apply(&mut self, event: Event, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Wanted => self.wanted = true,
            Event::Message { sequence, reply } => self.message(sequence, reply, now, &mut actions),
            Event::PullExpired { number } => {
                if self.end_pull(number) {
                    self.pull_delay = PULL_DELAY_MIN;
                }
            }
            Event::PullRefused { number } => {
                if self.end_pull(number) {
                    self.pull_at = Some(now + self.pull_delay);
                    self.pull_delay = (self.pull_delay * 2).min(PULL_DELAY_MAX);
                }
            }
            Event::ProgressAnswered { number } => self.progress_answered(number),
            Event::Taken { sequence } => {
                if let Some(held) = self.held.get_mut(&sequence) {
                    held.take_by = None;
                }
            }
            Event::Settled { sequence } => {
                self.held.remove(&sequence);
            }
            Event::Connected => self.reconnected(now),
            // The server drops a pull with its connection.
            Event::Disconnected => (self.connected, self.outstanding) = (false, None),
            Event::Closing => self.close(now),
            Event::Deadline => {}
        }
        self.due(now, &mut actions);
        self.pull_if_wanted(now, &mut actions);
        actions
    }

    /// When to come back with [`Event::Deadline`] if nothing else happens.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let pull = match self.outstanding {
            Some(outstanding) => Some(outstanding.lost_at),
            None if self.wants_pull() => self.pull_at,
            None => None,
        };
        let held = self.held.values().flat_map(|held| {
            let progress = (self.connected && !held.lost).then_some(held.progress_at);
            let lost = (!held.lost).then_some(held.confirmed_at + self.ack_wait);
            [progress, lost, held.take_by]
        });
        held.chain([pull]).flatten().min()
    }

    /// Nothing is held and no message can come any more.
    pub(crate) fn is_finished(&self) -> bool {
        self.closing && self.held.is_empty() && self.outstanding.is_none()
    }

    /// The subject that acknowledges a held message.
    pub(crate) fn reply(&self, sequence: Sequence) -> Option<String> {
        self.held.get(&sequence).map(|held| held.reply.clone())
    }

    /// No pull is outstanding and no message waits for a taker that will not come.
    pub(crate) fn is_closed_to_messages(&self) -> bool {
        self.closing
            && self.outstanding.is_none()
            && self.held.values().all(|held| held.take_by.is_none())
    }

    fn message(
        &mut self,
        sequence: Sequence,
        reply: String,
        now: Instant,
        actions: &mut Vec<Action>,
    ) {
        // Whichever pull it answers: a pull brings one message, and to count too few outstanding ones costs a nak.
        self.outstanding = None;
        self.pull_delay = PULL_DELAY_MIN;
        let progress_at = now + self.progress_period();
        if let Some(held) = self.held.get_mut(&sequence) {
            held.reply.clone_from(&reply);
            held.confirmed_at = now;
            held.progress_at = progress_at;
            held.unanswered.clear();
            held.lost = false;
            actions.push(Action::Adopt { sequence, reply });
            return;
        }
        if !self.wanted || self.closing || self.held.len() >= HELD_MAX {
            actions.push(Action::Nak { reply });
            return;
        }
        self.wanted = false;
        let take_by = Some(now + UNTAKEN_MAX);
        let held = Held {
            reply,
            take_by,
            confirmed_at: now,
            progress_at,
            unanswered: Vec::new(),
            lost: false,
        };
        self.held.insert(sequence, held);
        actions.push(Action::Deliver { sequence });
    }

    /// Whether `number` was the outstanding one. An answer to an older pull says nothing about it.
    fn end_pull(&mut self, number: u64) -> bool {
        let ended = self
            .outstanding
            .is_some_and(|outstanding| outstanding.number == number);
        if ended {
            self.outstanding = None;
        }
        ended
    }

    fn progress_answered(&mut self, number: u64) {
        for held in self.held.values_mut() {
            if let Some(at) = held.unanswered.iter().position(|(sent, _)| *sent == number) {
                // The server reset the deadline some time after we sent it: the sending time is the safe bound.
                held.confirmed_at = held.confirmed_at.max(held.unanswered[at].1);
                held.unanswered.drain(..=at);
                return;
            }
        }
    }

    fn reconnected(&mut self, now: Instant) {
        self.connected = true;
        self.outstanding = None;
        self.pull_at = None;
        self.pull_delay = PULL_DELAY_MIN;
        for held in self.held.values_mut() {
            held.progress_at = now;
        }
    }

    fn close(&mut self, now: Instant) {
        self.closing = true;
        self.wanted = false;
        for held in self.held.values_mut() {
            if held.take_by.is_some() {
                held.take_by = Some(now);
            }
        }
    }

    /// Everything whose time has come.
    fn due(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if self
            .outstanding
            .is_some_and(|outstanding| outstanding.lost_at <= now)
        {
            self.outstanding = None;
        }
        let (ack_wait, period, connected) = (self.ack_wait, self.progress_period(), self.connected);
        for (&sequence, held) in &mut self.held {
            if held.take_by.is_some_and(|by| by <= now) {
                actions.push(Action::Withdraw { sequence });
                // The answer follows as an event at once; asked again if it never does.
                held.take_by = Some(now + UNTAKEN_MAX);
            }
            if held.lost {
                continue;
            }
            if held.confirmed_at + ack_wait <= now {
                held.lost = true;
                actions.push(Action::Lost { sequence });
            } else if connected && held.progress_at <= now {
                self.progresses += 1;
                if held.unanswered.len() > PROGRESS_PER_ACK_WAIT as usize {
                    held.unanswered.remove(0);
                }
                held.unanswered.push((self.progresses, now));
                held.progress_at = now + period;
                actions.push(Action::Progress {
                    number: self.progresses,
                    reply: held.reply.clone(),
                });
            }
        }
    }

    fn wants_pull(&self) -> bool {
        self.wanted && !self.closing && self.connected && self.held.len() < HELD_MAX
    }

    fn pull_if_wanted(&mut self, now: Instant, actions: &mut Vec<Action>) {
        if !self.wants_pull()
            || self.outstanding.is_some()
            || self.pull_at.is_some_and(|at| now < at)
        {
            return;
        }
        self.pulls += 1;
        self.pull_at = None;
        self.outstanding = Some(Outstanding {
            number: self.pulls,
            lost_at: now + PULL_LOST_AFTER,
        });
        actions.push(Action::Pull { number: self.pulls });
    }

    fn progress_period(&self) -> Duration {
        self.ack_wait / PROGRESS_PER_ACK_WAIT
    }
}

#[cfg(test)]
mod tests;
