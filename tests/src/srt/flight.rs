//! The rows that the fake server writes: they finish by the step-rate model, or are aborted.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use replay::{Flight, Times};
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

/// How a row ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Every token is written.
    Finished,
    /// Its client said that nobody needs it.
    Aborted,
}

/// The engine of the fake server.
#[derive(Clone)]
pub(crate) struct Rows {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

struct State {
    flight: Flight<String>,
    waiting: HashMap<String, oneshot::Sender<End>>,
}

/// A row in flight; it leaves when nobody waits for it, as SRT drops what a client that is gone has asked for.
pub(crate) struct InFlight {
    rows: Rows,
    rid: String,
    end: oneshot::Receiver<End>,
}

impl Rows {
    pub(crate) fn new(times: Times) -> Self {
        let state = State {
            flight: Flight::new(times),
            waiting: HashMap::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            changed: Arc::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Rows in flight.
    pub(crate) fn len(&self) -> usize {
        self.state().waiting.len()
    }

    /// Whether a row of this name is in flight.
    pub(crate) fn has(&self, rid: &str) -> bool {
        self.state().waiting.contains_key(rid)
    }

    /// Starts a row.
    pub(crate) fn join(&self, rid: &str, tokens: u32) -> InFlight {
        let (told, end) = oneshot::channel();
        let mut state = self.state();
        state
            .flight
            .join(rid.to_owned(), tokens, Instant::now().into_std());
        state.waiting.insert(rid.to_owned(), told);
        drop(state);
        self.changed.notify_one();
        InFlight {
            rows: self.clone(),
            rid: rid.to_owned(),
            end,
        }
    }

    /// Ends every row whose name starts with `rid`, as SRT does.
    pub(crate) fn abort(&self, rid: &str) {
        let mut state = self.state();
        let names = state.waiting.keys();
        let hit: Vec<String> = names
            .filter(|name| name.starts_with(rid))
            .cloned()
            .collect();
        for name in hit {
            state.end(&name, End::Aborted);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Tells rows their ends, for ever.
    pub(crate) async fn run(self) {
        loop {
            let next = self.state().flight.next_finish();
            let finish = async {
                match next {
                    Some(at) => tokio::time::sleep_until(Instant::from_std(at)).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = finish => {}
                () = self.changed.notified() => {}
            }
            let mut state = self.state();
            for rid in state.flight.finished(Instant::now().into_std()) {
                state.end(&rid, End::Finished);
            }
        }
    }
}

impl State {
    fn end(&mut self, rid: &String, end: End) {
        self.flight.leave(rid, Instant::now().into_std());
        if let Some(told) = self.waiting.remove(rid) {
            // Refused when its client is gone.
            told.send(end).ok();
        }
    }
}

impl InFlight {
    pub(crate) async fn end(mut self) -> End {
        (&mut self.end).await.unwrap_or(End::Aborted)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.rows.state().end(&self.rid, End::Aborted);
        self.rows.changed.notify_one();
    }
}
