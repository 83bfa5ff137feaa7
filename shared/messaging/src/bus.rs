//! The connection to the broker: requests, messages without storage, and the last message of a subject.

use std::{fmt, sync::Arc, time::Duration};

use async_nats::{
    Client, HeaderMap, Message as NatsMessage, Request, StatusCode, client::RequestErrorKind,
};
use bytes::Bytes;
use futures::StreamExt;
use protocol::{Prefix, Progress, Role, Subject, WorkerId, encode, topology::Topology};
use tokio::{sync::watch, time::timeout};

use crate::{
    access::Access,
    connection::{self, Connection, ConnectionName, Notes},
    error::{BusError, Source},
    server::{Server, Servers},
    trace,
};

/// One try of a request. Longer than any pause of a healthy broker, shorter than an election (4 to 8 s): a request
/// into an election fails and is tried again rather than waiting on a leader that is gone.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the broker is and who calls.
#[derive(Debug, Clone)]
pub struct BusConfig {
    /// One address, or all of a cluster.
    pub urls: Vec<String>,
    /// The deployment.
    pub prefix: Prefix,
    /// Names the inboxes: a credential reads those of its own name and no others.
    pub inbox: String,
    /// Names the connection.
    pub worker: WorkerId,
    /// Who it is to the broker.
    pub access: Access,
}

impl BusConfig {
    /// For a process of `role`, under a fresh name.
    pub fn new(urls: Vec<String>, prefix: Prefix, role: Role) -> Self {
        Self {
            urls,
            prefix,
            inbox: role.to_string(),
            worker: WorkerId::generate(role),
            access: Access::default(),
        }
    }

    /// The same for a process that has another credential than its role's.
    pub fn with_inbox(self, inbox: &str) -> Self {
        Self {
            inbox: inbox.to_owned(),
            ..self
        }
    }

    /// The same with these credentials and certificates.
    pub fn with_access(self, access: Access) -> Self {
        Self { access, ..self }
    }
}

/// A connection to the broker. Clones share it.
#[derive(Clone)]
pub struct Bus {
    shared: Arc<Shared>,
}

struct Shared {
    client: Client,
    prefix: Prefix,
    /// Only the names are read from it: limits and deadlines in force are the broker's.
    topology: Topology,
    connection: watch::Receiver<Connection>,
    refusals: watch::Receiver<Option<String>>,
    servers: Servers,
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bus({})", self.shared.prefix)
    }
}

impl Bus {
    /// Starts to connect, and keeps doing so: a broker that is not there yet is no error, only an address that
    /// cannot be one, or a file of credentials that is none. [`Bus::connection`] tells when it is there.
    pub async fn connect(config: &BusConfig) -> Result<Self, BusError> {
        let name = ConnectionName {
            prefix: config.prefix.clone(),
            worker: config.worker.clone(),
        };
        let inbox = format!("_INBOX_{}_{}", config.prefix, config.inbox);
        let (state, connection) = watch::channel(Connection::default());
        let (refusal, refusals) = watch::channel(None);
        let notes = Notes { state, refusal };
        let options = connection::options(&name.to_string(), &inbox, notes);
        let (options, addresses) = config.access.apply(options, &config.urls)?;
        let client = options
            .connect(addresses.as_slice())
            .await
            .map_err(|source| BusError::Connect(source.into()))?;
        let topology = Topology::new(&config.prefix);
        let shared = Shared {
            client,
            prefix: config.prefix.clone(),
            topology,
            connection,
            refusals,
            servers: Servers::new(&addresses),
        };
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The deployment.
    pub fn prefix(&self) -> &Prefix {
        &self.shared.prefix
    }

    /// Whether the broker can be reached, and changes of it.
    pub fn connection(&self) -> watch::Receiver<Connection> {
        self.shared.connection.clone()
    }

    /// The server that it is connected to, or was last; `None` before the first connection.
    pub(crate) fn server(&self) -> Option<Server> {
        let now = *self.shared.connection.borrow();
        self.shared.servers.of(now, &self.shared.client)
    }

    /// Returns once the broker is connected.
    pub async fn connected(&self) {
        let mut connection = self.connection();
        // The sender lives in the client, which this bus holds.
        connection
            .wait_for(|now| now.up)
            .await
            .expect("the connection's state outlives the bus");
    }

    /// Returns once the broker has said of something that this credential may not do it, with its words: what was tried only
    /// times out.
    pub async fn refused(&self) -> String {
        let mut refusals = self.shared.refusals.clone();
        let refusal = refusals.wait_for(Option::is_some).await;
        let refusal = refusal.expect("the client, which this bus holds, notes them");
        refusal.clone().expect("waited for")
    }

    /// Tells who listens how far an output is. Best effort: a lost one is superseded by the next.
    pub async fn report_progress(&self, progress: &Progress) {
        let subject = self.prefix().subject(&Subject::Progress(progress.output));
        match encode(progress) {
            Ok(bytes) => {
                let mut headers = HeaderMap::new();
                trace::inject(&mut headers);
                self.send(OutMessage {
                    subject,
                    reply: None,
                    headers: Some(headers),
                    payload: bytes.into(),
                })
                .await;
            }
            Err(error) => tracing::error!(%error, "progress has no bytes"),
        }
    }

    /// Waits until everything sent so far is on the socket. No round trip.
    pub async fn flush(&self) -> Result<(), BusError> {
        let unavailable = |source: Source| BusError::Unavailable {
            what: "a flush".to_owned(),
            source,
        };
        match timeout(REQUEST_TIMEOUT, self.shared.client.flush()).await {
            Ok(flushed) => flushed.map_err(|source| unavailable(source.into())),
            Err(elapsed) => Err(unavailable(elapsed.into())),
        }
    }

    /// Sends what is still buffered and ends the connection, for every clone. The last step of a process.
    pub async fn close(&self) {
        if let Err(error) = self.flush().await {
            tracing::warn!(%error, "the last messages may be lost");
        }
        if let Err(error) = self.shared.client.drain().await {
            tracing::debug!(%error, "connection was closed already");
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Streams, consumers and buckets of this deployment, with the default options.
    pub fn topology(&self) -> &Topology {
        &self.shared.topology
    }

    /// A message without storage or answer: progress, acks, pulls. Gives up after [`REQUEST_TIMEOUT`]: without a
    /// connection the client buffers 2,048 messages and then blocks.
    pub(crate) async fn send(&self, message: OutMessage) {
        let OutMessage {
            subject,
            reply,
            headers,
            payload,
        } = message;
        let client = &self.shared.client;
        #[expect(
            clippy::disallowed_methods,
            reason = "the one place for messages that no stream stores"
        )]
        let sent = async {
            match (reply, headers) {
                (Some(reply), _) => client.publish_with_reply(subject, reply, payload).await,
                (None, Some(headers)) => {
                    client.publish_with_headers(subject, headers, payload).await
                }
                (None, None) => client.publish(subject, payload).await,
            }
        };
        match timeout(REQUEST_TIMEOUT, sent).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "message was not sent"),
            Err(_) => tracing::warn!("message was not sent: the connection's buffer is full"),
        }
    }

    /// One request, one answer, one try.
    pub(crate) async fn request(
        &self,
        subject: String,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<NatsMessage, RequestFailure> {
        // The timeout twice: the client's own covers the answer only, not a full buffer.
        let mut request = Request::new()
            .payload(payload)
            .timeout(Some(REQUEST_TIMEOUT));
        if let Some(headers) = headers {
            request = request.headers(headers);
        }
        match timeout(
            REQUEST_TIMEOUT,
            self.shared.client.send_request(subject, request),
        )
        .await
        {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if error.kind() == RequestErrorKind::MaxPayloadExceeded => {
                Err(RequestFailure::TooLarge(error.into()))
            }
            Ok(Err(error)) => Err(RequestFailure::Unavailable(error.into())),
            Err(elapsed) => Err(RequestFailure::Unavailable(elapsed.into())),
        }
    }

    /// The last message on `subject` in `stream`, read from any replica.
    pub(crate) async fn last(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<NatsMessage>, BusError> {
        let last = self.last_with_marker(stream, subject).await?;
        Ok(last.filter(|message| !is_gone(message)))
    }

    /// The same, and a marker where the key is gone.
    pub(crate) async fn last_with_marker(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<NatsMessage>, BusError> {
        let request = format!("$JS.API.DIRECT.GET.{stream}.{subject}");
        let answer = self
            .request(request, None, Bytes::new())
            .await
            .map_err(|failure| failure.into_bus(subject))?;
        match answer.status {
            None => Ok(Some(answer)),
            Some(StatusCode::NOT_FOUND) => Ok(None),
            Some(status) => Err(refused(subject, status, &answer)),
        }
    }

    /// The last message of each subject that matches `pattern`, in one request and without a consumer.
    pub(crate) async fn last_of_all(
        &self,
        stream: &str,
        pattern: &str,
        most: u32,
    ) -> Result<Vec<NatsMessage>, BusError> {
        let client = &self.shared.client;
        let unavailable = |source: Source| BusError::Unavailable {
            what: pattern.to_owned(),
            source,
        };
        let inbox = client.new_inbox();
        let mut answers = client
            .subscribe(inbox.clone())
            .await
            .map_err(|source| unavailable(source.into()))?;
        let request = serde_json::json!({ "multi_last": [pattern], "batch": most }).to_string();
        let subject = format!("$JS.API.DIRECT.GET.{stream}");
        self.send(OutMessage {
            subject,
            reply: Some(inbox),
            headers: None,
            payload: request.into(),
        })
        .await;
        let mut found = Vec::new();
        loop {
            let next = timeout(REQUEST_TIMEOUT, answers.next())
                .await
                .map_err(|source| unavailable(source.into()))?;
            let Some(answer) = next else { return Ok(found) };
            match answer.status.map(|status| status.as_u16()) {
                None if is_gone(&answer) => {}
                None => found.push(answer),
                // 204: the end of the batch. 404: nothing matches.
                Some(204 | 404) => return Ok(found),
                Some(503) => return Err(unavailable("no responders".into())),
                Some(status) => return Err(refused_code(pattern, status, &answer)),
            }
        }
    }
}

/// A message that no stream stores.
pub(crate) struct OutMessage {
    pub(crate) subject: String,
    pub(crate) reply: Option<String>,
    pub(crate) headers: Option<HeaderMap>,
    pub(crate) payload: Bytes,
}

/// Why a request has no answer.
pub(crate) enum RequestFailure {
    /// The client refuses its size.
    TooLarge(Source),
    /// Anything else: worth a retry.
    Unavailable(Source),
}

impl RequestFailure {
    pub(crate) fn into_bus(self, what: &str) -> BusError {
        match self {
            Self::TooLarge(source) | Self::Unavailable(source) => BusError::Unavailable {
                what: what.to_owned(),
                source,
            },
        }
    }
}

/// The stream behind a bucket.
pub(crate) fn bucket_stream(bucket: &str) -> String {
    format!("KV_{bucket}")
}

/// The subject behind a bucket's key.
pub(crate) fn bucket_subject(bucket: &str, key: &str) -> String {
    format!("$KV.{bucket}.{key}")
}

/// The place of a message that was read from a stream: what compare-and-set compares.
pub(crate) fn stored_sequence(message: &NatsMessage) -> Option<u64> {
    let sequence = message.headers.as_ref()?.get("Nats-Sequence")?;
    sequence.as_str().parse().ok()
}

/// Whether a message with these headers only says that its key is gone.
pub(crate) fn is_marker(headers: &HeaderMap) -> bool {
    headers.get("KV-Operation").is_some() || headers.get("Nats-Marker-Reason").is_some()
}

/// Whether a message only says that its key is gone.
pub(crate) fn is_gone(message: &NatsMessage) -> bool {
    message.headers.as_ref().is_some_and(is_marker)
}

fn refused(what: &str, status: StatusCode, answer: &NatsMessage) -> BusError {
    refused_code(what, status.as_u16(), answer)
}

fn refused_code(what: &str, status: u16, answer: &NatsMessage) -> BusError {
    let text = answer.description.clone().unwrap_or_default();
    BusError::Refused {
        what: what.to_owned(),
        code: u64::from(status),
        text,
    }
}
