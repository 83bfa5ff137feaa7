//! What is to be asked of the broker, each key once at a time. Pure.

use std::{
    collections::{HashSet, VecDeque},
    hash::Hash,
};

/// Keys in the order in which they are to be asked for.
#[derive(Debug)]
pub(crate) struct Asking<K> {
    wanted: VecDeque<K>,
    /// Those in `wanted`, and those that are being asked for.
    known: HashSet<K>,
    /// To be asked for once more: the question under way may have been too early.
    again: HashSet<K>,
}

impl<K: Copy + Eq + Hash> Asking<K> {
    pub(crate) fn new() -> Self {
        Self {
            wanted: VecDeque::new(),
            known: HashSet::new(),
            again: HashSet::new(),
        }
    }

    /// Asks for `key`, unless that is about to happen.
    pub(crate) fn want(&mut self, key: K) {
        if self.known.insert(key) {
            self.wanted.push_back(key);
        }
    }

    /// Asks for `key` before all others, and once more if it is being asked for.
    pub(crate) fn want_now(&mut self, key: K) {
        if self.known.insert(key) {
            self.wanted.push_front(key);
        } else {
            self.again.insert(key);
        }
    }

    /// What to ask for next; to be followed by [`Asking::answered`].
    pub(crate) fn next(&mut self) -> Option<K> {
        self.wanted.pop_front()
    }

    /// The question for `key` is over. Says whether there was reason to ask once more meanwhile.
    pub(crate) fn answered(&mut self, key: K) -> bool {
        self.known.remove(&key);
        self.again.remove(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_asked_for_once_at_a_time_and_urgent_ones_first() {
        let mut asking = Asking::new();
        for key in [1, 2, 1] {
            asking.want(key);
        }
        asking.want_now(3);
        assert_eq!(asking.next(), Some(3));
        // On its way: wanted again changes nothing, news do.
        asking.want(3);
        asking.want_now(3);
        assert_eq!((asking.next(), asking.next()), (Some(1), Some(2)));
        assert_eq!(asking.next(), None);
        assert!(asking.answered(3));
        assert!(!asking.answered(1));
        asking.want(1);
        assert_eq!(asking.next(), Some(1));
    }
}
