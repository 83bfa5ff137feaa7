//! The queues that a batcher takes requests from.

use futures::future::{join_all, select_all};
use messaging::{Delivery, WorkQueue};

/// A queue per priority class, the first to go first.
pub(crate) struct ByClass(pub(crate) Vec<WorkQueue>);

impl ByClass {
    /// The next message of a class that is wanted, of the highest one that has any. Cancellation safe.
    pub(super) async fn next(&mut self, wanted: [bool; 3]) -> Delivery {
        let queues = self.0.iter_mut().zip(wanted);
        let nexts: Vec<_> = queues
            .filter(|(_, wanted)| *wanted)
            .map(|(queue, _)| Box::pin(queue.next()))
            .collect();
        if nexts.is_empty() {
            return std::future::pending().await;
        }
        select_all(nexts).await.0
    }

    pub(super) async fn close(self) {
        join_all(self.0.into_iter().map(WorkQueue::close)).await;
    }
}
