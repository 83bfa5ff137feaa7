//! What a fleet's workers count.

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
        let workers = self.bus.workers().await.expect("the broker runs");
        let mut values = Vec::new();
        for address in workers
            .iter()
            .filter(|w| w.role == role)
            .filter_map(|w| w.health_address)
        {
            let Some((_, metrics)) = http::text(&format!("http://{address}/metrics")).await else {
                continue;
            };
            let value = metrics
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix("_total "));
            let value = value.unwrap_or_else(|| panic!("no counter {name} in:\n{metrics}"));
            values.push(value.parse().expect("a counter is a whole number"));
        }
        values
    }
}
