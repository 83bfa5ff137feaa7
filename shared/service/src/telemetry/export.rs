//! Where spans go: nowhere, or to an OTLP collector in batches. A collector that is slow, full or dead costs spans and
//! nothing else: ending a span never waits, and the batches are sent from a thread of their own.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{
        BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracerProvider, Span, SpanData,
        SpanExporter as ExportSpans, SpanProcessor,
    },
};
use protocol::{limits::STEPS_MAX, trace::attribute};
use reqwest::{blocking, redirect};

use super::Identity;
use crate::{
    TraceArgs,
    exit::Failure,
    trace_args::{OtlpEndpoint, OtlpProtocol},
};

/// Spans that wait to be sent; more are dropped. A hundred pictures' worth.
const SPANS_WAITING_MAX: usize = 2_048;

/// Spans in one message to the collector.
const SPANS_PER_EXPORT_MAX: usize = 512;

/// How long a span waits for company: what a person who looks at a running job notices.
const EXPORT_PERIOD: Duration = Duration::from_secs(1);

/// How long the collector has to take a batch. Meanwhile the next ones gather, and what has no room is dropped.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Events of one span: a denoising step is one, and a few more may be said.
const EVENTS_PER_SPAN_MAX: u32 = STEPS_MAX as u32 + 16;

/// Rows of a batch are its links; more than an engine has slots.
const LINKS_PER_SPAN_MAX: u32 = 256;

/// What became of the spans so far.
static EXPORT: Export = Export::new();

/// The spans of a process on their way out.
struct Export {
    failing: AtomicBool,
    waiting: AtomicU64,
    sent: AtomicU64,
    refused: AtomicU64,
    queue_full: AtomicU64,
}

/// What became of a process's spans so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExportState {
    /// The collector did not take the last batch.
    pub failing: bool,
    /// Spans it took.
    pub sent: u64,
    /// Spans it did not take.
    pub refused: u64,
    /// Spans that found no room to wait.
    pub queue_full: u64,
}

/// What became of this process's spans so far.
pub fn export_state() -> ExportState {
    EXPORT.state()
}

impl Export {
    const fn new() -> Self {
        Self {
            failing: AtomicBool::new(false),
            waiting: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
        }
    }

    fn state(&self) -> ExportState {
        ExportState {
            failing: self.failing.load(Ordering::Relaxed),
            sent: self.sent.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            queue_full: self.queue_full.load(Ordering::Relaxed),
        }
    }

    /// Whether there is room for one more span to wait; counts it either way.
    fn enters(&self) -> bool {
        let one_more = |waiting| (waiting < SPANS_WAITING_MAX as u64).then_some(waiting + 1);
        let entered = self
            .waiting
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
        if entered.is_err() {
            self.queue_full.fetch_add(1, Ordering::Relaxed);
        }
        entered.is_ok()
    }

    /// So many spans wait no more: they are on their way.
    fn leave(&self, spans: usize) {
        self.waiting.fetch_sub(count(spans), Ordering::Relaxed);
    }

    /// Counts a batch of `spans`; says whether that is news: the first failure, or the first success after one.
    fn ended(&self, spans: usize, taken: bool) -> bool {
        let counter = if taken { &self.sent } else { &self.refused };
        counter.fetch_add(count(spans), Ordering::Relaxed);
        self.failing.swap(!taken, Ordering::Relaxed) == taken
    }
}

fn count(spans: usize) -> u64 {
    u64::try_from(spans).unwrap_or(u64::MAX)
}

/// The provider of every span of this process.
pub(super) fn provider(
    identity: &Identity,
    args: &TraceArgs,
) -> Result<SdkTracerProvider, Failure> {
    let sampler = Sampler::TraceIdRatioBased(args.trace_ratio);
    let mut provider = SdkTracerProvider::builder()
        .with_sampler(Sampler::ParentBased(Box::new(sampler)))
        .with_max_events_per_span(EVENTS_PER_SPAN_MAX)
        .with_max_links_per_span(LINKS_PER_SPAN_MAX)
        .with_resource(resource(identity));
    if let Some(endpoint) = &args.otlp_endpoint {
        let exporter = Watched(exporter(endpoint, args.otlp_protocol)?);
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(SPANS_WAITING_MAX)
            .with_max_export_batch_size(SPANS_PER_EXPORT_MAX)
            .with_scheduled_delay(EXPORT_PERIOD)
            .build();
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches);
        provider = provider.with_span_processor(Counted(processor.build()));
    }
    Ok(provider.build())
}

/// Not the library's own: that one reads the environment besides.
fn resource(identity: &Identity) -> Resource {
    let attributes = resource_attributes(identity).map(|(name, value)| KeyValue::new(name, value));
    Resource::builder_empty()
        .with_attributes(attributes)
        .build()
}

/// Who the process is, in its spans and in its metrics.
pub(super) fn resource_attributes(identity: &Identity) -> [(&'static str, String); 4] {
    let Identity {
        service,
        deployment,
        instance,
    } = identity;
    [
        (attribute::SERVICE_NAME, (*service).to_owned()),
        (attribute::SERVICE_NAMESPACE, deployment.clone()),
        (attribute::SERVICE_INSTANCE_ID, instance.clone()),
        (
            attribute::SERVICE_VERSION,
            env!("CARGO_PKG_VERSION").to_owned(),
        ),
    ]
}

fn exporter(endpoint: &OtlpEndpoint, protocol: OtlpProtocol) -> Result<SpanExporter, Failure> {
    let unusable =
        |error: ExporterBuildError| Failure::Unusable(format!("--otlp-endpoint: {error}"));
    let exporter = match protocol {
        OtlpProtocol::Grpc => SpanExporter::builder()
            .with_tonic()
            .with_endpoint(endpoint.to_string())
            .with_timeout(EXPORT_TIMEOUT)
            .build(),
        OtlpProtocol::HttpProtobuf => SpanExporter::builder()
            .with_http()
            .with_http_client(client()?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint.at("/v1/traces"))
            .with_timeout(EXPORT_TIMEOUT)
            .build(),
    };
    exporter.map_err(unusable)
}

/// The library's own, but for redirects: a redirected POST becomes a GET, which succeeds and brings nothing.
fn client() -> Result<blocking::Client, Failure> {
    let build = || {
        let client = blocking::Client::builder().timeout(EXPORT_TIMEOUT);
        client.redirect(redirect::Policy::none()).build()
    };
    // It has a runtime of its own, which cannot be made on a thread of ours.
    let built = std::thread::spawn(build).join();
    let built = built.map_err(|_| Failure::Failed("the client of spans cannot be made".to_owned()));
    built?.map_err(|error| Failure::failed(&error))
}

/// Lets in as many spans as the library's own queue holds, which drops what is beyond and keeps the number to itself.
#[derive(Debug)]
struct Counted(BatchSpanProcessor);

impl SpanProcessor for Counted {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.0.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if EXPORT.enters() {
            self.0.on_end(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

/// Tells once when the collector takes no spans any more, and once when it does again: not for each batch.
#[derive(Debug)]
struct Watched(SpanExporter);

impl ExportSpans for Watched {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        EXPORT.leave(spans);
        let exported = self.0.export(batch).await;
        let news = EXPORT.ended(spans, exported.is_ok());
        match &exported {
            Ok(()) if news => tracing::info!("the collector takes spans again"),
            Err(error) if news => {
                tracing::warn!(
                    error = crate::exit::chain(error),
                    "the collector takes no spans, dropping them until it does"
                );
            }
            Ok(()) | Err(_) => {}
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::TcpListener,
        pin::pin,
        task::{Context as Polling, Poll, Waker},
        thread,
    };

    use super::*;

    /// Whether the spans are exported where the collector's one answer begins with these words.
    fn exported(status: &'static str) -> bool {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut head = BufReader::new(&client).lines();
            while !head.next().unwrap().unwrap().is_empty() {}
            let head = format!(
                "HTTP/1.1 {status}\r\nlocation: http://{at}/\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            client.write_all(head.as_bytes()).unwrap();
            drop(client);
            // Who follows finds what takes everything.
            listener.set_nonblocking(true).unwrap();
            listener
        });
        let endpoint = format!("http://{at}").parse().unwrap();
        let exporter = exporter(&endpoint, OtlpProtocol::HttpProtobuf).unwrap();
        let polled =
            pin!(exporter.export(Vec::new())).poll(&mut Polling::from_waker(Waker::noop()));
        let listener = server.join().unwrap();
        assert!(listener.accept().is_err(), "nobody asks again");
        matches!(polled, Poll::Ready(Ok(())))
    }

    #[test]
    fn spans_that_are_sent_elsewhere_are_not_taken() {
        assert!(exported("200 OK"));
        for status in ["302 Found", "307 Temporary Redirect", "400 Bad Request"] {
            assert!(!exported(status), "{status}");
        }
    }

    #[test]
    fn a_dead_collector_is_told_of_once_and_its_return_once() {
        let export = Export::new();
        let batches = [true, false, false, true, true];
        let news = batches.map(|taken| export.ended(3, taken));
        assert_eq!(news, [false, true, false, true, false]);
        let state = ExportState {
            failing: false,
            sent: 9,
            refused: 6,
            queue_full: 0,
        };
        assert_eq!(export.state(), state);
    }

    #[test]
    fn spans_that_find_no_room_are_counted_and_room_comes_with_those_that_leave() {
        let export = Export::new();
        let enter = |spans: usize| (0..spans).filter(|_| export.enters()).count();
        assert_eq!(enter(SPANS_WAITING_MAX + 3), SPANS_WAITING_MAX);
        assert_eq!(export.state().queue_full, 3);
        export.leave(SPANS_PER_EXPORT_MAX);
        assert_eq!(enter(SPANS_PER_EXPORT_MAX + 1), SPANS_PER_EXPORT_MAX);
        assert_eq!(export.state().queue_full, 4);
    }
}
