//! What is done about a call that brought no rows: tried again, taken apart, or given back.

use std::time::Duration;

use futures::future::join_all;
use protocol::{ErrorCode, JobError};
use service::exit::chain;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    client::{CallError, SrtClient},
    reply,
    request::{Generate, SrtRow, SrtSampling, rid},
};
use crate::engine::{BatchProgress, EngineError, RowOutcome};

/// Before each further try of a call: a restart of a proxy or a broken connection is over by then. A server that takes
/// longer to come back is the batcher's to wait for.
const RETRY_PAUSES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(1)];

/// Runs rows on one server.
pub(crate) struct Caller<'a> {
    pub(crate) client: &'a SrtClient,
    pub(crate) sampling: SrtSampling,
    pub(crate) codebook_size: u32,
    pub(crate) progress: &'a watch::Sender<BatchProgress>,
    pub(crate) tokens_max: u32,
    pub(crate) stop: &'a CancellationToken,
}

impl Caller<'_> {
    /// One outcome for each row. When the call fails and one of its rows may be why, each runs in a call of its own:
    /// all at once, as SRT batches them by itself.
    pub(crate) async fn run(&self, rows: &[SrtRow]) -> Result<Vec<RowOutcome>, EngineError> {
        let error = match self.call(rows).await {
            Ok(outcomes) => return Ok(outcomes),
            Err(error) => error,
        };
        let url = self.client.url();
        if error.is_refusal() {
            tracing::warn!(%url, error = chain(&error), "server takes no rows now");
            return Err(EngineError::Full);
        }
        if let CallError::Stopped = error {
            return Err(EngineError::Stopped);
        }
        if rows.len() == 1 {
            return Ok(vec![Err(self.failed(&rows[0], &error))]);
        }
        tracing::warn!(%url, rows = rows.len(), error = chain(&error), "call failed, running its rows alone");
        let alone = rows.iter().map(|row| self.alone(row));
        join_all(alone).await.into_iter().collect()
    }

    async fn alone(&self, row: &SrtRow) -> Result<RowOutcome, EngineError> {
        match self.call(std::slice::from_ref(row)).await {
            Ok(mut outcomes) => Ok(outcomes.pop().expect("one outcome for each row")),
            Err(CallError::Stopped) => Err(EngineError::Stopped),
            // Also when the server is full by now: the row has been in a call that failed, and its companions may have
            // run, so nobody can say of all that they did not.
            Err(error) => Ok(Err(self.failed(row, &error))),
        }
    }

    /// Calls until there is an answer, or an error that another try does not mend.
    async fn call(&self, rows: &[SrtRow]) -> Result<Vec<RowOutcome>, CallError> {
        let mut pauses = RETRY_PAUSES.into_iter();
        let (mut arrived, mut before) = (None, 0);
        loop {
            let error = match self.attempt(rows, before).await {
                Ok(outcomes) => return Ok(outcomes),
                Err(error) => error,
            };
            // Several rows that the server failed at are better asked for one by one than once more together.
            let is_worth_it =
                error.may_pass() && (rows.len() == 1 || !matches!(error, CallError::Status { .. }));
            let pause = pauses.next().filter(|_| is_worth_it);
            if let CallError::Lost(_) | CallError::Status { .. } = error {
                arrived = Some(error);
            } else if pause.is_none() {
                // A server that one of these rows may have killed is not one that was away, nor is the router before it
                // that has no other left.
                return match arrived {
                    Some(arrived) if error.is_refusal() => Err(arrived),
                    _ => Err(error),
                };
            }
            let Some(pause) = pause else {
                return Err(arrived.expect("just put there"));
            };
            let paused = tokio::time::sleep(pause);
            let paused = self.stop.run_until_cancelled(paused).await;
            paused.ok_or(CallError::Stopped)?;
            before += 1;
        }
    }

    /// One call, the same as `before` ones. Rows that may run on without anybody waiting for them are aborted.
    async fn attempt(&self, rows: &[SrtRow], before: u32) -> Result<Vec<RowOutcome>, CallError> {
        // SRT tells nothing until it is done; that a call has begun is the only sign of life there is.
        self.tell(0);
        let rids: Vec<String> = rows.iter().map(|row| rid(row.output)).collect();
        let body = Generate::new(rows, &rids, self.sampling);
        let answer = self
            .stop
            .run_until_cancelled(self.client.generate(&body, before))
            .await;
        match answer.unwrap_or(Err(CallError::Stopped)) {
            Ok(answer) => {
                let outcomes = reply::outcomes(rows, &rids, answer, self.codebook_size)?;
                self.tell(self.tokens_max);
                Ok(outcomes)
            }
            Err(error) => {
                if error.may_run_on(rows.len()) {
                    self.client.abort(&rids).await;
                }
                Err(error)
            }
        }
    }

    fn tell(&self, tokens: u32) {
        let tokens_max = self.tokens_max;
        self.progress
            .send_replace(BatchProgress { tokens, tokens_max });
    }

    /// Why a row that was alone in its call has no prior.
    fn failed(&self, row: &SrtRow, error: &CallError) -> JobError {
        let url = self.client.url();
        if let Some(status) = error.request_fault() {
            // The client reads this one: it says nothing of where the server is.
            tracing::warn!(output = %row.output, %url, error = chain(error), "server refused the row");
            let text = format!("the AR server refused the row: HTTP {status}");
            return JobError::new(ErrorCode::InvalidParameter, &text);
        }
        let code = match error {
            CallError::WrongLength(_) => ErrorCode::PriorTokensInvalid,
            _ => ErrorCode::ArFailed,
        };
        let text = format!("SRT at {url}: {}", chain(error));
        JobError::new(code, &text)
    }
}
