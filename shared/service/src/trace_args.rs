//! Flags that say where spans go and how many of them. The names of the environment are OpenTelemetry's own.

use std::{fmt, str::FromStr};

use warp::http::Uri;

use crate::unshown;

/// Where a process sends its spans, and of which share of the traces that begin with it.
#[derive(Debug, Clone, clap::Args)]
pub struct TraceArgs {
    /// OTLP collector that gets the spans, for example `http://127.0.0.1:4318`; without one none are sent
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_ENDPOINT",
        hide_env_values = true,
        value_name = "URL",
        value_parser = unshown::<OtlpEndpoint>()
    )]
    pub otlp_endpoint: Option<OtlpEndpoint>,

    /// How the collector is talked to
    #[arg(
        long,
        env = "OTEL_EXPORTER_OTLP_PROTOCOL",
        value_name = "PROTOCOL",
        value_enum,
        default_value_t = OtlpProtocol::HttpProtobuf
    )]
    pub otlp_protocol: OtlpProtocol,

    /// Seconds between two sendings of every metric to the same collector; without it they are only there to be scraped
    #[arg(
        long,
        env = "FRESCO_OTLP_METRICS_S",
        value_name = "SECONDS",
        requires = "otlp_endpoint",
        value_parser = clap::value_parser!(u64).range(1..=3600)
    )]
    pub otlp_metrics_s: Option<u64>,

    /// Share of the traces that begin here, from 0 to 1; a trace that comes with a request keeps its own decision
    #[arg(
        long,
        env = "OTEL_TRACES_SAMPLER_ARG",
        value_name = "SHARE",
        default_value_t = Self::RATIO_DEFAULT,
        value_parser = ratio
    )]
    pub trace_ratio: f64,
}

impl TraceArgs {
    /// Everything: a picture takes seconds, its twenty spans some kilobytes.
    const RATIO_DEFAULT: f64 = 1.0;
}

/// For a process that sends none.
impl Default for TraceArgs {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            otlp_protocol: OtlpProtocol::HttpProtobuf,
            otlp_metrics_s: None,
            trace_ratio: Self::RATIO_DEFAULT,
        }
    }
}

/// The two encodings of OTLP that every collector takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum OtlpProtocol {
    /// gRPC, on port 4317 by custom
    Grpc,
    /// HTTP with protobuf bodies, on port 4318 by custom
    #[value(name = "http/protobuf")]
    HttpProtobuf,
}

/// The address of a collector, without TLS and without credentials: what leaves the machine goes through a collector
/// beside the process, and what is in a flag is logged.
#[derive(Clone, PartialEq, Eq)]
pub struct OtlpEndpoint(String);

impl OtlpEndpoint {
    /// With `path` behind it.
    pub(crate) fn at(&self, path: &str) -> String {
        format!("{}{path}", self.0)
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// Why a text is no address of a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OtlpEndpointError {
    /// Another scheme, or none.
    #[error("must start with http://; TLS is the business of a collector beside the process")]
    Scheme,
    /// A user name or password.
    #[error("must not hold credentials")]
    Credentials,
    /// Anything else.
    #[error("is no address")]
    Unreadable,
}

impl FromStr for OtlpEndpoint {
    type Err = OtlpEndpointError;

    fn from_str(text: &str) -> Result<Self, OtlpEndpointError> {
        let uri: Uri = text.parse().map_err(|_| OtlpEndpointError::Unreadable)?;
        if uri.scheme_str() != Some("http") {
            return Err(OtlpEndpointError::Scheme);
        }
        let authority = uri.authority().ok_or(OtlpEndpointError::Unreadable)?;
        if authority.as_str().contains('@') {
            return Err(OtlpEndpointError::Credentials);
        }
        if uri.query().is_some() {
            return Err(OtlpEndpointError::Unreadable);
        }
        Ok(Self(text.trim_end_matches('/').to_owned()))
    }
}

/// A share.
fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        // NaN is in no range.
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        Ok(_) | Err(_) => Err("not a number from 0 to 1".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        traces: TraceArgs,
    }

    #[test]
    fn a_collector_is_an_address_without_tls_and_without_secrets() {
        use OtlpEndpointError::{Credentials, Scheme, Unreadable};
        for (text, wanted) in [
            ("http://127.0.0.1:4317", Ok("http://127.0.0.1:4317/x")),
            ("http://collector/", Ok("http://collector/x")),
            ("https://collector", Err(Scheme)),
            ("collector:4317", Err(Scheme)),
            ("http://user:secret@collector", Err(Credentials)),
            ("http://collector/?key=secret", Err(Unreadable)),
            ("", Err(Unreadable)),
        ] {
            let endpoint = text.parse::<OtlpEndpoint>();
            let at = endpoint.map(|endpoint| endpoint.at("/x"));
            assert_eq!(at, wanted.map(str::to_owned), "{text}");
        }
    }

    #[test]
    fn protocol_share_and_period_are_checked() {
        let parsed = |flags: &[&str]| {
            let flags = std::iter::once(&"worker").chain(flags);
            Flags::try_parse_from(flags).map(|flags| flags.traces)
        };
        let grpc = parsed(&["--otlp-protocol", "grpc", "--trace-ratio", "0.1"]).expect("allowed");
        assert_eq!(grpc.otlp_protocol, OtlpProtocol::Grpc);
        let collector = ["--otlp-endpoint", "http://h:1", "--otlp-metrics-s"];
        let every = |seconds| parsed(&[&collector[..], &[seconds]].concat());
        assert_eq!(every("15").expect("allowed").otlp_metrics_s, Some(15));
        assert!(every("0").is_err() && every("3601").is_err());
        assert!((grpc.trace_ratio - 0.1).abs() < f64::EPSILON);
        for refused in [
            ["--trace-ratio", "1.1"],
            ["--trace-ratio", "NaN"],
            ["--otlp-metrics-s", "15"],
            ["--otlp-protocol", "http/json"],
        ] {
            assert!(parsed(&refused).is_err(), "{refused:?}");
        }
    }
}
