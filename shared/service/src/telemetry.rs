//! Logs, and the spans whose ids travel with every message.
//!
//! Spans come in two sizes. Those at the edges (a request, a message) are there always, so that log lines and messages
//! carry the ids of a trace even where nobody collects it. The stages within are of level debug and made only where a
//! collector gets them: elsewhere they cost what a log line costs that nobody wants.

use std::time::Duration;

use opentelemetry::{global, propagation::TextMapCompositePropagator, trace::TracerProvider as _};
use opentelemetry_sdk::{
    error::OTelSdkError,
    propagation::{BaggagePropagator, TraceContextPropagator},
    trace::{SdkTracer, SdkTracerProvider},
};
use tracing::{Level, Metadata, Subscriber};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::{
    Layer, filter::filter_fn, layer::SubscriberExt, registry::LookupSpan, reload,
    util::SubscriberInitExt,
};

use self::{console::Console, lines::WithTrace};
use crate::{
    LogFormat, ShellArgs,
    exit::{Failure, chain},
};

mod console;
mod export;
pub mod filter;
mod lines;
pub(crate) mod push;
pub mod spans;

pub use self::export::{ExportState, export_state};

/// How long the last spans of a process may take to reach the collector. Beside the grace period, not of it: by then
/// everything else has ended.
pub const FLUSH_MAX: Duration = Duration::from_secs(2);

/// Who a process is in its spans.
#[derive(Debug, Clone)]
pub struct Identity {
    /// What it is: `fresco-gateway`.
    pub service: &'static str,
    /// Its deployment.
    pub deployment: String,
    /// Which one of its kind it is: the name that the fleet knows it by.
    pub instance: String,
}

/// Keeps telemetry alive; flushes and ends it when dropped, so hold it until the end of `main`.
#[must_use]
#[derive(Debug)]
pub struct TelemetryGuard {
    provider: SdkTracerProvider,
}

impl TelemetryGuard {
    /// Sends what is left, for [`FLUSH_MAX`] at most. Beside the runtime, which a gRPC export needs meanwhile.
    pub async fn end(self) {
        let provider = self.provider.clone();
        let ended = tokio::task::spawn_blocking(move || flush(&provider)).await;
        if let Err(error) = ended {
            tracing::warn!(%error, "telemetry did not shut down cleanly");
        }
    }
}

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        flush(&self.provider);
    }
}

fn flush(provider: &SdkTracerProvider) {
    match provider.shutdown_with_timeout(FLUSH_MAX) {
        Ok(()) | Err(OTelSdkError::AlreadyShutdown) => {}
        Err(error) => tracing::warn!(%error, "the last spans may be lost"),
    }
}

/// Our crates by their targets: what the libraries beneath say of themselves is no part of a job's trace, and an
/// exporter that traced its own sending would never be done.
const TRACED: [&str; 6] = [
    "gateway",
    "ar_batcher",
    "denoiser",
    "messaging",
    "service",
    "fresco",
];

/// Starts logging to stderr, installs the propagators of W3C trace context and baggage, and sends spans where `args`
/// say. Call it once, first in `main`; with gRPC within the runtime.
pub fn init(identity: &Identity, args: &ShellArgs) -> Result<TelemetryGuard, Failure> {
    let unusable = |text: String| Failure::Unusable(format!("--log {}: {text}", args.log_filter));
    let filter = filter::parse(&args.log_filter).map_err(|error| unusable(chain(&error)))?;
    let (filter, handle) = reload::Layer::new(filter);
    let provider = export::provider(identity, &args.traces)?;
    global::set_tracer_provider(provider.clone());
    global::set_text_map_propagator(propagator());
    let exports = args.traces.otlp_endpoint.is_some();
    let spans = span_layer(provider.tracer(identity.service))
        .with_filter(filter_fn(move |callsite| is_traced(callsite, exports)));
    let console = args.tokio_console.map(Console::start).transpose();
    let console = console
        .map_err(|error| Failure::Unusable(format!("--tokio-console: {}", chain(&error))))?;
    let console_address = console.as_ref().map(|console| console.address);
    // A filter each: who silences the log still wants whole traces.
    let started = tracing_subscriber::registry()
        .with(log_layer(args.log_format).with_filter(filter))
        .with(spans)
        .with(console.map(Console::into_layer))
        .try_init();
    started.map_err(|error| unusable(error.to_string()))?;
    filter::keep(&args.log_filter, handle);
    if let Some(address) = console_address {
        tracing::info!(%address, "tokio-console listens");
    }
    Ok(TelemetryGuard { provider })
}

fn propagator() -> TextMapCompositePropagator {
    TextMapCompositePropagator::new(vec![
        Box::new(TraceContextPropagator::new()),
        Box::new(BaggagePropagator::new()),
    ])
}

fn log_layer<S>(format: LogFormat) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    match format {
        LogFormat::Text => lines
            .map_event_format(|lines| WithTrace { lines, format })
            .boxed(),
        LogFormat::Json => lines
            .json()
            .map_event_format(|lines| WithTrace { lines, format })
            .boxed(),
    }
}

fn span_layer<S>(tracer: SdkTracer) -> OpenTelemetryLayer<S, SdkTracer>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    tracing_opentelemetry::layer()
        .with_tracer(tracer)
        // Each would be an attribute of every span, and of no use to who looks at a job.
        .with_location(false)
        .with_threads(false)
        .with_target(false)
        .with_tracked_inactivity(false)
        // What went wrong is said where it is known: a log line alone is no failure of its span.
        .with_error_events_to_status(false)
}

/// Whether a span, or a log line within one, is part of a trace.
fn is_traced(callsite: &Metadata<'_>, exports: bool) -> bool {
    let (krate, _) = callsite
        .target()
        .split_once("::")
        .unwrap_or((callsite.target(), ""));
    let level_max = match (callsite.is_span(), exports) {
        (true, true) => Level::DEBUG,
        (true, false) => Level::INFO,
        (false, true) => Level::WARN,
        (false, false) => return false,
    };
    *callsite.level() <= level_max && TRACED.contains(&krate)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether a callsite of this level is part of a trace, by what it is and whether there is a collector.
    #[test]
    fn stages_are_traced_for_a_collector_only() {
        let span = |level: Level| -> &'static Metadata<'static> {
            let span = match level {
                Level::INFO => tracing::info_span!(target: "denoiser::worker", "edge"),
                _ => tracing::debug_span!(target: "denoiser::worker", "stage"),
            };
            span.metadata().expect("a subscriber is set")
        };
        tracing::subscriber::with_default(tracing_subscriber::registry(), || {
            let (edge, stage) = (span(Level::INFO), span(Level::DEBUG));
            let beneath = tracing::info_span!(target: "h2::client", "connection");
            let beneath = beneath.metadata().expect("a subscriber is set");
            let table = [
                (edge, false, true),
                (edge, true, true),
                (stage, false, false),
                (stage, true, true),
                (beneath, true, false),
            ];
            for (callsite, exports, wanted) in table {
                assert_eq!(
                    is_traced(callsite, exports),
                    wanted,
                    "{callsite:?} {exports}"
                );
            }
        });
    }
}
