//! A client that waits: until its pictures are there, or until it leaves.

use messaging::ProgressByOutput;
use protocol::ErrorCode;
use warp::http::HeaderMap;

use crate::{gateway::Gateway, jobs::OpenJob, outcome::EndedByOutput, reply::ApiError};

/// The header by which a client asks that its job goes on without it, and how refusals name it.
const ON_DISCONNECT: &str = "Fresco-On-Disconnect";

/// What becomes of a job whose client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnDisconnect {
    Cancel,
    Continue,
}

/// As the client asked for; a device works for somebody who is there, by default.
pub(crate) fn on_disconnect(headers: &HeaderMap) -> Result<OnDisconnect, ApiError> {
    let mut values = headers.get_all(ON_DISCONNECT).into_iter();
    match (values.next().map(|value| value.as_bytes()), values.next()) {
        (None, _) => Ok(OnDisconnect::Cancel),
        (Some(b"continue"), None) => Ok(OnDisconnect::Continue),
        _ => Err(ApiError::parameter(
            ON_DISCONNECT,
            "Fresco-On-Disconnect must be continue",
        )),
    }
}

/// Cancels a job when it is dropped before [`Stay::over`]: its client has left.
#[derive(Debug)]
pub(crate) struct Stay<'a> {
    gateway: &'a Gateway,
    /// None when nothing is to be done.
    open: Option<OpenJob>,
}

impl<'a> Stay<'a> {
    pub(crate) fn new(gateway: &'a Gateway, open: &OpenJob, on_disconnect: OnDisconnect) -> Self {
        let open = match on_disconnect {
            OnDisconnect::Cancel => Some(open.clone()),
            OnDisconnect::Continue => None,
        };
        Self { gateway, open }
    }

    /// The client has its answer.
    pub(crate) fn over(mut self) {
        self.open = None;
    }
}

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        let Some(open) = self.open.take() else { return };
        // A gateway that stops cuts its clients off: they may well come back for the job.
        if !self.gateway.stopping.is_cancelled() {
            self.gateway.jobs.abandon(open);
        }
    }
}

/// How every output ended; the first failed one fails the request at once.
pub(crate) async fn all_ended(
    gateway: &Gateway,
    open: &mut OpenJob,
) -> Result<EndedByOutput, ApiError> {
    let job = open.record.job;
    let outputs = open.record.outputs.len();
    let failure = |ended: &EndedByOutput| {
        let mut outcomes = ended.values().map(|ended| &ended.outcome);
        outcomes.find_map(|outcome| outcome.as_ref().err().cloned())
    };
    let settled = open
        .ended
        .wait_for(|ended| ended.len() == outputs || failure(ended).is_some());
    let ended = tokio::select! {
        ended = settled => ended.ok().map(|ended| ended.clone()),
        () = gateway.answers_due.cancelled() => None,
    };
    let Some(ended) = ended else {
        let text = "the gateway is stopping; the job goes on and another gateway can tell of it";
        return Err(ApiError::new(ErrorCode::NotReady, text).of_job(job));
    };
    match failure(&ended) {
        Some(error) => Err(ApiError::from(error).of_job(job)),
        None => Ok(ended),
    }
}

/// What has happened to a job so far.
pub(crate) fn so_far(open: &OpenJob) -> (EndedByOutput, ProgressByOutput) {
    (open.ended.borrow().clone(), open.progress.borrow().clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_wish_of_who_leaves_is_that_the_job_goes_on() {
        let read = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                let value = value.parse().expect("a header value");
                headers.append("fresco-on-disconnect", value);
            }
            on_disconnect(&headers).map_err(|error| error.param().map(str::to_owned))
        };
        let named = Err(Some(ON_DISCONNECT.to_owned()));
        assert_eq!(read(&[]), Ok(OnDisconnect::Cancel));
        assert_eq!(read(&["continue"]), Ok(OnDisconnect::Continue));
        for wrong in [
            &["cancel"][..],
            &["Continue"],
            &[""],
            &["continue", "continue"],
        ] {
            assert_eq!(read(wrong), named, "{wrong:?}");
        }
    }
}
