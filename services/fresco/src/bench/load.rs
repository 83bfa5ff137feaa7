//! A load: which requests come, and when. Pure: what `fresco bench` asks for is what `fresco plan` simulates.

use std::time::Duration;

use protocol::ImageSize;
use replay::{SplitMix64, generated_tokens};
use serde::{Deserialize, Serialize};

use crate::args::LoadArgs;

/// Of an open load this share is the ramp.
const RAMP_SHARE: f64 = 0.2;
/// A closed load's ramp ends when so many requests of every client are answered: after the first, which all start at
/// once, they still come in waves.
const RAMP_ROUNDS: usize = 2;

/// How requests come.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Arrivals {
    /// So many clients each wait for an answer before they ask again.
    Closed { concurrency: usize },
    /// So many a second, whatever happens.
    Open { requests_per_s: f64 },
}

/// Requests and how they come. Times are those of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Load {
    pub(crate) arrivals: Arrivals,
    /// Taken in turn.
    pub(crate) sizes: Vec<String>,
    #[serde(skip)]
    image_sizes: Vec<ImageSize>,
    /// Pictures of a request.
    pub(crate) n: u8,
    pub(crate) steps: u16,
    pub(crate) requests: usize,
    pub(crate) seed: u64,
}

impl Load {
    /// Refuses a load of which the ramp would be all.
    pub(crate) fn new(args: &LoadArgs) -> Result<Self, String> {
        let arrivals = match (args.concurrency, args.rate) {
            (Some(clients), _) => Arrivals::Closed {
                concurrency: clients.into(),
            },
            (None, rate) => Arrivals::Open {
                requests_per_s: rate.expect("clap requires one of both"),
            },
        };
        let load = Self {
            arrivals,
            sizes: args.sizes.iter().map(ToString::to_string).collect(),
            image_sizes: args.sizes.clone(),
            n: args.n,
            steps: args.steps,
            requests: args.requests as usize,
            seed: args.seed,
        };
        match load.arrivals {
            Arrivals::Closed { concurrency } if load.requests < 2 * RAMP_ROUNDS * concurrency => {
                let need = 2 * RAMP_ROUNDS * concurrency;
                Err(format!(
                    "--requests {}: {concurrency} clients need at least {need}, the first of which are the ramp",
                    load.requests
                ))
            }
            Arrivals::Closed { .. } | Arrivals::Open { .. } => Ok(load),
        }
    }

    /// Of the request of this number.
    pub(crate) fn size(&self, request: usize) -> ImageSize {
        self.image_sizes[request % self.image_sizes.len()]
    }

    /// Requests that come at the start and not one after the other.
    pub(crate) const fn at_once(&self) -> usize {
        match self.arrivals {
            Arrivals::Closed { concurrency } => concurrency,
            Arrivals::Open { .. } => 0,
        }
    }

    /// When the requests of an open load come; of a closed one nothing is known beforehand.
    pub(crate) fn schedule(&self) -> Vec<Duration> {
        let Arrivals::Open { requests_per_s } = self.arrivals else {
            return Vec::new();
        };
        let mut stream = SplitMix64::new(self.seed);
        let mut at = 0.0;
        let next = |_| {
            // Between arrivals at random the time has an exponential distribution. 53 bits are a double's; never 0.
            let share = ((stream.draw() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
            at -= share.ln() / requests_per_s;
            Duration::from_secs_f64(at)
        };
        (0..self.requests).map(next).collect()
    }

    /// Whether the window of what counts opens with this answer or request: so many were sent and answered, it
    /// included.
    pub(crate) fn is_open(&self, sent: usize, answered: usize) -> bool {
        match self.arrivals {
            Arrivals::Closed { concurrency } => answered >= RAMP_ROUNDS * concurrency,
            Arrivals::Open { .. } => sent >= self.open_ramp(),
        }
    }

    /// Requests of an open load's ramp.
    fn open_ramp(&self) -> usize {
        (RAMP_SHARE * self.requests as f64).ceil() as usize
    }

    /// Whether the latency of `request` counts, if it was answered in the window or not. Of an open load that of every
    /// request after the ramp does, whenever it was answered: where the queue grows, those that are still out when the
    /// window closes are the ones that wait longest. Of a closed load those in the window do: the last ones have less
    /// and less company.
    pub(crate) fn latency_counts(&self, request: usize, in_window: bool) -> bool {
        match self.arrivals {
            Arrivals::Closed { .. } => in_window,
            Arrivals::Open { .. } => request >= self.open_ramp(),
        }
    }

    /// Images a second that come whatever happens; none of a closed load.
    pub(crate) fn images_per_s(&self) -> Option<f64> {
        match self.arrivals {
            Arrivals::Closed { .. } => None,
            Arrivals::Open { requests_per_s } => Some(requests_per_s * f64::from(self.n)),
        }
    }

    /// Whether it closes: no request is left to send, and a closed load's clients begin to be idle.
    pub(crate) const fn is_over(&self, sent: usize) -> bool {
        sent >= self.requests
    }

    /// Tokens of a row, on average.
    pub(crate) fn tokens_mean(&self) -> f64 {
        let tokens = self.image_sizes.iter();
        let sum: f64 = tokens.map(|size| f64::from(generated_tokens(*size))).sum();
        sum / self.image_sizes.len() as f64
    }

    /// Outputs in the system at most, where that is fixed.
    pub(crate) fn outputs_max(&self) -> Option<usize> {
        match self.arrivals {
            Arrivals::Closed { concurrency } => Some(concurrency * usize::from(self.n)),
            Arrivals::Open { .. } => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        load: LoadArgs,
    }

    pub(crate) fn load(flags: &str) -> Result<Load, String> {
        let cli = Cli::try_parse_from(format!("x {flags}").split_whitespace());
        Load::new(&cli.map_err(|error| error.to_string())?.load)
    }

    #[test]
    fn sizes_are_taken_in_turn() {
        let load = load("--concurrency 1 --sizes 64x64,64x32").expect("a load");
        let sizes: Vec<_> = (0..3).map(|i| load.size(i).to_string()).collect();
        assert_eq!(sizes, ["64x64", "64x32", "64x64"]);
    }

    #[test]
    fn requests_at_random_come_at_their_rate_and_alike_for_the_same_seed() {
        let flags = "--rate 0.5 --requests 4000";
        let schedule = load(flags).expect("a load").schedule();
        assert!(schedule.is_sorted());
        let (mean, expected) = (schedule[3_999].as_secs_f64() / 4_000.0, 2.0);
        assert!((mean - expected).abs() < 0.1, "{mean}");
        assert_eq!(load(flags).expect("a load").schedule(), schedule);
        let other = load(&format!("{flags} --seed 2")).expect("a load");
        assert_ne!(other.schedule(), schedule);
    }

    #[test]
    fn the_ramp_does_not_count() {
        let closed = load("--concurrency 4 --requests 20").expect("a load");
        assert!(!closed.is_open(12, 7) && closed.is_open(12, 8));
        let open = load("--rate 1 --requests 20").expect("a load");
        assert!(!open.is_open(3, 3) && open.is_open(4, 0));
        assert!(!open.is_over(19) && open.is_over(20));
    }

    #[test]
    fn a_load_that_is_all_ramp_is_refused() {
        assert!(load("--concurrency 4 --requests 15").is_err());
        assert!(load("--concurrency 4 --requests 16").is_ok());
    }

    #[test]
    fn a_load_is_open_or_closed() {
        for flags in ["", "--rate 1 --concurrency 1", "--rate 0", "--rate=-1"] {
            assert!(load(flags).is_err(), "{flags}");
        }
    }
}
