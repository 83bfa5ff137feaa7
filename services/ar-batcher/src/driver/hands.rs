//! The tasks that wait for the broker and the engines, and what they tell.

use std::panic::AssertUnwindSafe;

use batching::{BatchId, Look, Mark};
use futures::FutureExt;
use messaging::{KnownLife, Lease};
use protocol::{JobError, JobId, OutputId};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{batch::BatchEnd, engine::EngineError, request::Held, settle::Fate};

/// News that nobody has heard yet. A task that finds no place waits, and with it only what it did.
const NEWS_MAX: usize = 256;

/// What a task came to.
pub(super) enum News {
    /// A message was looked at.
    Admitted {
        job: JobId,
        /// Absent when it is settled.
        held: Option<Held>,
    },
    /// A batch ended.
    Ran(BatchEnd),
    /// An output is on its way, answered, or to be tried again.
    Settled {
        output: OutputId,
        /// The batch of those that need no engine that it was in.
        passed: Option<BatchId>,
        fate: Fate,
    },
    /// An output's life says that it waits here; or somebody else has changed it.
    Told {
        output: OutputId,
        known: Option<KnownLife>,
    },
    /// The denoise stage was looked at; not when the broker did not answer.
    Looked { mark: Mark, look: Option<Look> },
    /// An engine that is down was tested.
    Tested {
        engine: usize,
        tested: Result<Result<(), JobError>, EngineError>,
    },
    /// A task ended without a word, and what it had in hand is lost to the driver.
    Died(TaskDied),
}

/// A task panicked.
#[derive(Debug, thiserror::Error)]
#[error("a task of the AR-batcher has died")]
pub(super) struct TaskDied;

/// Runs tasks.
pub(super) struct Hands {
    tell: mpsc::Sender<News>,
    tracker: TaskTracker,
    over: CancellationToken,
}

impl Hands {
    pub(super) fn new(tracker: TaskTracker) -> (Self, mpsc::Receiver<News>) {
        let (tell, news) = mpsc::channel(NEWS_MAX);
        let over = CancellationToken::new();
        let hands = Self {
            tell,
            tracker,
            over,
        };
        (hands, news)
    }

    /// Runs `work` and tells what it came to.
    pub(super) fn task(&self, work: impl Future<Output = News> + Send + 'static) {
        let (tell, over) = (self.tell.clone(), self.over.clone());
        let told = async move {
            let news = AssertUnwindSafe(work).catch_unwind().await;
            tell.send(news.unwrap_or(News::Died(TaskDied))).await
        };
        self.tracker.spawn(async move {
            if let Some(Err(_)) = over.run_until_cancelled(told).await {
                tracing::debug!("a task ended for nobody");
            }
        });
    }

    /// Runs what nobody waits for.
    pub(super) fn aside(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(work);
    }

    /// The last step of a message whose outputs are all stored, or that another message of the held request stands for.
    pub(super) fn ack(&self, lease: Lease) {
        self.aside(lease.ack());
    }

    /// Ends every task that tells something: there is nobody to hear it.
    pub(super) fn over(&self) {
        self.over.cancel();
    }
}
