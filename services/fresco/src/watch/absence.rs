//! Which worker is dead: a pure state machine over what the broker tells of connections. It knows no broker, no
//! message and no clock.
//!
//! A lost connection is not a lost worker: clients also disconnect to reconnect, all of them at once when a node of a
//! cluster stops. So a worker is given [`RECONNECT_MAX`] to come back. Being wrong costs a picture painted twice,
//! never a wrong result (results are fenced); being slow costs every job of a dead worker that time.

use std::{collections::HashMap, time::Duration};

use messaging::ConnectionId;
use protocol::WorkerId;
use tokio::time::Instant;

/// How long a worker may be without a connection. Our clients try again after 50 ms and then 100, 150, … ms
/// (`messaging::connection`), so 500 ms are four tries at a broker that answers; and a job whose worker was killed is
/// to be with another one within a second.
pub const RECONNECT_MAX: Duration = Duration::from_millis(500);

/// Workers that are kept in mind at once; as many as the queues' consumers let wait. One beyond it is left to the ack
/// deadline.
pub const WORKERS_MAX: usize = 4_096;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A worker has connected.
    Connected(WorkerId, ConnectionId),
    /// A connection of a worker has ended.
    Disconnected(WorkerId, ConnectionId),
    /// Events were or will be lost: nothing that was known holds.
    Blind,
    /// The instant of [`Absences::next_timer`] has come.
    Timer,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// This worker is dead: what it held is to go to others.
    GiveBackFor(WorkerId),
}

/// The workers whose connection ended and that are not back yet.
#[derive(Debug, Default)]
pub struct Absences {
    /// The newest connection of each worker that connected under our eyes. The end of an older one says nothing: a
    /// client that was cut off is back before the server notices that its old connection is dead.
    connected: HashMap<WorkerId, ConnectionId>,
    /// Since when each one is away.
    away: HashMap<WorkerId, Instant>,
}

impl Absences {
    /// Takes note of `event` and says what follows from it. Only the timer finds the dead, one at a time: giving back may
    /// take seconds, and whoever reads what has happened meanwhile before the next one takes nobody for dead who is back.
    pub fn apply(&mut self, event: Event, now: Instant) -> Option<Action> {
        match event {
            Event::Connected(worker, connection) => self.came(worker, connection),
            Event::Disconnected(worker, connection) => self.went(worker, &connection, now),
            Event::Blind => *self = Self::default(),
            Event::Timer => return self.take_dead(now),
        }
        None
    }

    /// When [`Event::Timer`] is due next.
    pub fn next_timer(&self) -> Option<Instant> {
        self.away.values().min().map(|since| *since + RECONNECT_MAX)
    }

    fn came(&mut self, worker: WorkerId, connection: ConnectionId) {
        self.away.remove(&worker);
        if self.connected.len() < WORKERS_MAX || self.connected.contains_key(&worker) {
            self.connected.insert(worker, connection);
        }
    }

    fn went(&mut self, worker: WorkerId, connection: &ConnectionId, now: Instant) {
        if self
            .connected
            .get(&worker)
            .is_some_and(|newest| newest != connection)
        {
            return;
        }
        self.connected.remove(&worker);
        if self.away.len() < WORKERS_MAX {
            self.away.entry(worker).or_insert(now);
        }
    }

    /// Who has been away for the longest, if for too long.
    fn take_dead(&mut self, now: Instant) -> Option<Action> {
        let longest = self
            .away
            .iter()
            .min_by_key(|(worker, since)| (**since, *worker));
        let (worker, _) = longest.filter(|(_, since)| **since + RECONNECT_MAX <= now)?;
        let worker = worker.clone();
        self.away.remove(&worker);
        Some(Action::GiveBackFor(worker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(name: &str) -> WorkerId {
        name.parse().expect("allowed characters")
    }

    fn connection(client: u64) -> ConnectionId {
        ConnectionId {
            server: "N".to_owned(),
            client,
        }
    }

    fn on(name: &str, client: u64) -> Event {
        Event::Connected(worker(name), connection(client))
    }

    fn off(name: &str, client: u64) -> Event {
        Event::Disconnected(worker(name), connection(client))
    }

    /// What happens when, in milliseconds, and who is found dead then.
    type Step = (u64, Event, Option<&'static str>);

    fn play(name: &str, steps: Vec<Step>) {
        let (mut absences, start) = (Absences::default(), Instant::now());
        for (at, event, dead) in steps {
            let action = absences.apply(event, start + Duration::from_millis(at));
            let dead = dead.map(|name| Action::GiveBackFor(worker(name)));
            assert_eq!(action, dead, "{name}, at {at} ms");
        }
    }

    #[test]
    fn a_worker_that_stays_away_for_half_a_second_is_dead() {
        let table: [(&str, Vec<Step>); 5] = [
            (
                "gone for good",
                vec![
                    (0, on("a", 1), None),
                    (100, off("a", 1), None),
                    (599, Event::Timer, None),
                    (600, Event::Timer, Some("a")),
                    (2_000, Event::Timer, None),
                ],
            ),
            (
                "connected before anybody watched",
                vec![(0, off("a", 1), None), (500, Event::Timer, Some("a"))],
            ),
            (
                "two, each in its own time",
                vec![
                    (0, off("a", 1), None),
                    (100, off("b", 2), None),
                    (500, Event::Timer, Some("a")),
                    (600, Event::Timer, Some("b")),
                ],
            ),
            (
                "a late timer finds both, the longest away first",
                vec![
                    (0, off("b", 1), None),
                    (1, off("a", 2), None),
                    (900, Event::Timer, Some("b")),
                    (900, Event::Timer, Some("a")),
                    (900, Event::Timer, None),
                ],
            ),
            (
                "its return is read late, behind another event",
                vec![
                    (0, off("a", 1), None),
                    (700, on("b", 2), None),
                    (700, on("a", 3), None),
                    (700, Event::Timer, None),
                ],
            ),
        ];
        for (name, steps) in table {
            play(name, steps);
        }
    }

    #[test]
    fn a_worker_that_comes_back_is_not_dead() {
        let table: [(&str, Vec<Step>); 4] = [
            (
                "back in time",
                vec![
                    (0, off("a", 1), None),
                    (499, on("a", 2), None),
                    (500, Event::Timer, None),
                    (5_000, Event::Timer, None),
                ],
            ),
            (
                "back, and gone again: the time starts anew",
                vec![
                    (0, off("a", 1), None),
                    (400, on("a", 2), None),
                    (450, off("a", 2), None),
                    (500, Event::Timer, None),
                    (950, Event::Timer, Some("a")),
                ],
            ),
            (
                "back before the end of the old connection was noticed",
                vec![
                    (0, on("a", 1), None),
                    (10, on("a", 2), None),
                    (20, off("a", 1), None),
                    (520, Event::Timer, None),
                    (600, off("a", 2), None),
                    (1_100, Event::Timer, Some("a")),
                ],
            ),
            (
                "nothing holds that was seen before the watcher was blind",
                vec![
                    (0, on("b", 1), None),
                    (10, off("a", 2), None),
                    (20, Event::Blind, None),
                    (900, Event::Timer, None),
                    (1_000, off("b", 7), None),
                    (1_500, Event::Timer, Some("b")),
                ],
            ),
        ];
        for (name, steps) in table {
            play(name, steps);
        }
    }

    #[test]
    fn the_timer_is_due_when_the_first_one_is_dead() {
        let (mut absences, start) = (Absences::default(), Instant::now());
        assert_eq!(absences.next_timer(), None);
        absences.apply(off("a", 1), start);
        absences.apply(off("b", 2), start + Duration::from_millis(100));
        assert_eq!(absences.next_timer(), Some(start + RECONNECT_MAX));
        absences.apply(on("a", 3), start + Duration::from_millis(200));
        let second = start + Duration::from_millis(100) + RECONNECT_MAX;
        assert_eq!(absences.next_timer(), Some(second));
        assert_eq!(
            absences.apply(Event::Timer, second),
            Some(Action::GiveBackFor(worker("b")))
        );
        assert_eq!(absences.next_timer(), None);
    }

    #[test]
    fn more_workers_than_can_be_kept_in_mind_are_left_to_the_ack_deadline() {
        let (mut absences, start) = (Absences::default(), Instant::now());
        for number in 0..=WORKERS_MAX {
            absences.apply(on(&format!("w-{number}"), 1), start);
            absences.apply(off(&format!("x-{number}"), 1), start);
        }
        assert_eq!(absences.connected.len(), WORKERS_MAX);
        assert_eq!(absences.away.len(), WORKERS_MAX);
    }
}
