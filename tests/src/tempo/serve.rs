//! The emulation for a Prometheus to scrape: each scrape takes in what the collector has got since the last one.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{Config, Processor};
use crate::{exposition::Exposition, otlp::Collector};

/// It ends when it is dropped.
pub struct Generator(Exposition);

struct Live {
    collector: Arc<Collector>,
    wait: Duration,
    state: Mutex<(Processor, usize)>,
}

impl Generator {
    /// Listens on a free port. Halves of edges wait for `wait`: what takes minutes in a deployment takes seconds in a
    /// test.
    pub async fn start(collector: Arc<Collector>, wait: Duration) -> Self {
        let live = Live {
            collector,
            wait,
            state: Mutex::new((Processor::new(Config::shipped()), 0)),
        };
        Self(Exposition::start(move || live.scraped()).await)
    }

    /// Whose `/metrics` to scrape.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

impl Live {
    fn scraped(&self) -> String {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (processor, seen) = &mut *state;
        let (spans, now) = (self.collector.spans(), Instant::now());
        for span in &spans[*seen..] {
            processor.push(span, now);
        }
        *seen = spans.len();
        processor.expire(self.wait, now);
        processor.text()
    }
}
