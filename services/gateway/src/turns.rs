//! One claim of a key at a time in one process: who asks meanwhile waits for its outcome and then joins, rather than
//! taking room for a job of its own that would give way at once.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use protocol::IdempotencyKey;
use tokio_util::sync::CancellationToken;

/// The keys being claimed here. Clones share them. Bounded by the requests under way.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns {
    /// Locked for single map operations only. A token is cancelled when its turn is over.
    taken: Arc<Mutex<HashMap<IdempotencyKey, CancellationToken>>>,
}

/// The right to claim a key; dropping it lets the next one try.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Turns,
    key: IdempotencyKey,
    over: CancellationToken,
}

impl Turns {
    /// The turn, or what is cancelled when the one who has it is done.
    pub(crate) fn take(&self, key: &IdempotencyKey) -> Result<Turn, CancellationToken> {
        match self.lock().entry(key.clone()) {
            Entry::Occupied(taken) => Err(taken.get().clone()),
            Entry::Vacant(free) => Ok(Turn {
                turns: self.clone(),
                key: key.clone(),
                over: free.insert(CancellationToken::new()).clone(),
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IdempotencyKey, CancellationToken>> {
        // A panic between two map operations leaves a whole map.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.turns.lock().remove(&self.key);
        self.over.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_has_one_turn_at_a_time_and_keys_do_not_wait_for_each_other() {
        let turns = Turns::default();
        let [key, other] = ["a", "b"].map(|key| key.parse().expect("allowed"));
        let first = turns.take(&key).expect("free");
        let over = turns.take(&key).expect_err("taken");
        assert!(turns.take(&other).is_ok());
        assert!(!over.is_cancelled());
        drop(first);
        over.cancelled().await;
        assert!(turns.take(&key).is_ok());
        assert!(turns.lock().is_empty());
    }
}
