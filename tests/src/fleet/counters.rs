//! What a fleet's workers count.

use std::collections::BTreeMap;

use protocol::Role;

use super::Fleet;
use crate::http;

impl Fleet {
    /// The sum of a counter over the workers of `role` that are alive.
    pub async fn counter(&self, role: Role, name: &str) -> u64 {
        self.counter_by_worker(role, name).await.iter().sum()
    }

    /// A counter of each worker of `role` that is alive. Workers count what they have stored once the broker has confirmed it,
    /// which may be after its client has the answer: [`Fleet::until_queues_empty`] comes before counting it.
    pub async fn counter_by_worker(&self, role: Role, name: &str) -> Vec<u64> {
        let value = |metrics: &String| {
            let value = metrics
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix("_total "));
            let value = value.unwrap_or_else(|| panic!("no counter {name} in:\n{metrics}"));
            value.parse().expect("a counter is a whole number")
        };
        self.scrapes(role).await.iter().map(value).collect()
    }

    /// A counter of seconds of each worker of `role` that is alive, by its labels as they are written, without one `{}`.
    pub async fn seconds_by_worker(&self, role: Role, name: &str) -> Vec<BTreeMap<String, f64>> {
        let of_line = |line: &str| {
            let (labels, seconds) = line
                .strip_prefix(name)?
                .strip_prefix("_total")?
                .rsplit_once(' ')?;
            let seconds = seconds.parse().expect("a number");
            Some((labels.to_owned(), seconds))
        };
        let scrapes = self.scrapes(role).await.into_iter();
        let series = scrapes.map(|metrics| metrics.lines().filter_map(of_line).collect());
        series.collect()
    }

    /// `/metrics` of each worker of `role` that is alive.
    async fn scrapes(&self, role: Role) -> Vec<String> {
        let workers = self.bus.workers().await.expect("the broker runs");
        let mut scrapes = Vec::new();
        for address in workers
            .iter()
            .filter(|w| w.role == role)
            .filter_map(|w| w.health_address)
        {
            let scrape = http::text(&format!("http://{address}/metrics")).await;
            scrapes.extend(scrape.map(|(_, metrics)| metrics));
        }
        scrapes
    }
}
