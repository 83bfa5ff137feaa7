//! Logs, and the spans whose ids travel with every message.
//!
//! Spans are recorded by an OpenTelemetry provider that has no exporter yet: their ids and the W3C headers are real,
//! so a collector sees whole traces on the day an exporter is added here.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_sdk::{propagation::TraceContextPropagator, trace::SdkTracerProvider};
use tracing_subscriber::{EnvFilter, Layer, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{LogFormat, ShellArgs, exit::Failure};

/// Keeps telemetry alive; flushes and ends it when dropped, so hold it until the end of `main`.
#[must_use]
#[derive(Debug)]
pub struct TelemetryGuard {
    provider: SdkTracerProvider,
}

impl Drop for TelemetryGuard {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "telemetry did not shut down cleanly");
        }
    }
}

/// warp calls every client that leaves early an error; nobody can act on one. A `--log` that names the module itself
/// brings it back.
const QUIET: &str = "warp::server::run=off";

/// Starts logging to stderr and installs the propagator of W3C trace headers. Call it once, first in `main`.
pub fn init(role: &'static str, args: &ShellArgs) -> Result<TelemetryGuard, Failure> {
    let unusable = |text: String| Failure::Unusable(format!("--log {}: {text}", args.log_filter));
    let filter = EnvFilter::try_new(format!("{QUIET},{}", args.log_filter))
        .map_err(|error| unusable(error.to_string()))?;
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(false);
    let lines = match args.log_format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().boxed(),
    };

    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    let provider = SdkTracerProvider::builder().build();
    let spans = tracing_opentelemetry::layer().with_tracer(provider.tracer(role));

    let started = tracing_subscriber::registry()
        .with(filter)
        .with(lines)
        .with(spans)
        .try_init();
    started.map_err(|error| unusable(error.to_string()))?;
    Ok(TelemetryGuard { provider })
}
