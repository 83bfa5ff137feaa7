//! How long nothing happened after an event.

use std::time::Duration;

/// How long after an event its pause is looked for: an election takes 4 to 8 s, and retries some more.
pub const WINDOW_MS: i128 = 20_000;

/// Now, on the clock with which the broker stamps its messages.
#[expect(
    clippy::disallowed_methods,
    reason = "compared with the broker's own stamps, made on this machine"
)]
pub fn now_ms() -> i128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("it is after 1970").as_millis().cast_signed()
}

/// The longest time between two neighbours of `stamps` (in order) that begins within [`WINDOW_MS`] of the event at
/// `from`. The event counts as a neighbour; what is still going on at the end of the run does not.
pub fn longest(stamps: &[i128], from: i128) -> Duration {
    let later = stamps.iter().copied().filter(|at| *at >= from);
    let mut last = from;
    let mut longest = 0;
    for at in later {
        if last - from <= WINDOW_MS {
            longest = longest.max(at - last);
        }
        last = at;
    }
    Duration::from_millis(u64::try_from(longest).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_pause_begins_at_the_event_or_after_it() {
        for (stamps, from, longest_ms) in [
            (&[0_i128, 10, 20][..], 0, 10),
            (&[0, 5_000, 5_010], 10, 4_990),
            (&[0, 100, 30_000, 90_000], 50, 29_900),
            (&[0, 10], 20, 0),
            (&[], 20, 0),
        ] {
            assert_eq!(
                longest(stamps, from),
                Duration::from_millis(longest_ms),
                "{stamps:?}"
            );
        }
    }
}
