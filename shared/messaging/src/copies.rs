//! Reads in a cluster, where a copy may be behind.
//!
//! A direct get is answered by any copy of a stream. What it finds is true, for what is written once; that it finds
//! nothing may only say that this copy has not heard of it yet: a client was told that its picture is gone, 1 ms after
//! another copy had stored it. So nothing is absent before the leader says so.

use std::{collections::HashMap, time::Duration};

use async_nats::{
    Message as NatsMessage,
    jetstream::{ErrorCode as ServerCode, message::StreamMessage, stream::RawMessage},
};
use bytes::Bytes;
use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::{
    bus::{Bus, REQUEST_TIMEOUT, is_marker},
    error::BusError,
};

/// Between two tries to find a copy that has what the leader has: copies are milliseconds behind.
const COPY_DELAY: Duration = Duration::from_millis(20);

/// The last message of a subject, as the leader has it, and the sequence that compare-and-set compares.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Latest {
    Stored {
        sequence: u64,
        payload: Bytes,
    },
    /// A marker. What is written next comes after it.
    Deleted {
        sequence: u64,
    },
}

impl Bus {
    /// The last message on `subject`, which is written once and never removed by hand. One more small request for what
    /// is not there.
    pub(crate) async fn last_or_absent(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<NatsMessage>, BusError> {
        let end = Instant::now() + REQUEST_TIMEOUT;
        loop {
            let found = self.last(stream, subject).await?;
            if found.is_some() || self.subjects(stream, subject).await?.is_empty() {
                return Ok(found);
            }
            if Instant::now() + COPY_DELAY >= end {
                return Err(BusError::Unavailable {
                    what: subject.to_owned(),
                    source: "every copy that answers is behind".into(),
                });
            }
            sleep(COPY_DELAY).await;
        }
    }

    /// The last message on `subject`, asked of the leader: for who writes next.
    pub(crate) async fn latest(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<Latest>, BusError> {
        #[derive(Deserialize)]
        struct Got {
            message: RawMessage,
        }
        let request = serde_json::json!({ "last_by_subj": subject }).to_string();
        let get = format!("STREAM.MSG.GET.{stream}");
        let stored = match self.api::<Got>(subject, get, request.into()).await {
            Ok(Some(got)) => got.message,
            Ok(None) => {
                return Err(BusError::Missing {
                    what: format!("stream {stream}"),
                });
            }
            Err(BusError::Refused { code, .. }) if code == ServerCode::NO_MESSAGE_FOUND.0 => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let stored = StreamMessage::try_from(stored);
        let stored = stored.map_err(|source| BusError::Unavailable {
            what: subject.to_owned(),
            source,
        })?;
        let sequence = stored.sequence;
        Ok(Some(if is_marker(&stored.headers) {
            Latest::Deleted { sequence }
        } else {
            let payload = stored.payload;
            Latest::Stored { sequence, payload }
        }))
    }

    /// The subjects of `stream` that match `filter` and their messages, as its leader has them.
    pub(crate) async fn subjects(
        &self,
        stream: &str,
        filter: &str,
    ) -> Result<HashMap<String, u64>, BusError> {
        #[derive(Deserialize)]
        struct Info {
            state: State,
        }
        #[derive(Deserialize)]
        struct State {
            #[serde(default)]
            subjects: Option<HashMap<String, u64>>,
        }
        let request = serde_json::json!({ "subjects_filter": filter }).to_string();
        let subject = format!("STREAM.INFO.{stream}");
        let info = self.api::<Info>(stream, subject, request.into()).await?;
        let info = info.ok_or_else(|| BusError::Missing {
            what: format!("stream {stream}"),
        })?;
        Ok(info.state.subjects.unwrap_or_default())
    }
}
