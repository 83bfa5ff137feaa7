//! What clients were told.

use std::time::Duration;

use protocol::{ErrorCode, JobId};

use super::order::Order;

/// How a request ended, in its client's eyes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// Every picture, in order.
    Pictures(Vec<Vec<u8>>),
    /// One error for the request: that of an output that failed.
    Error(ErrorCode),
    /// Each output's own end, `None` a picture: from the job object.
    Ends(Vec<Option<ErrorCode>>),
}

/// One request of one client.
#[derive(Debug, Clone)]
pub struct Entry {
    /// What was asked for.
    pub order: Order,
    /// The job and its end; a second time, if it was asked again. Empty when the client gave up waiting.
    pub answers: Vec<(JobId, Told)>,
    /// HTTP requests that asked for the job.
    pub tries: usize,
    /// From the first try to the first answer.
    pub took: Duration,
    /// Answers that no gateway may give.
    pub complaints: Vec<String>,
}

impl Entry {
    /// The job that the client was told first.
    pub fn job(&self) -> Option<JobId> {
        self.answers.first().map(|(job, _)| *job)
    }
}
