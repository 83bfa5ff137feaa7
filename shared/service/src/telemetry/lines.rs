//! Log lines that say which trace they belong to.

use std::fmt;

use opentelemetry::{
    Context,
    trace::{SpanContext, TraceContextExt},
};
use protocol::trace::log;
use tracing::{Event, Subscriber};
use tracing_subscriber::{
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer},
    registry::LookupSpan,
};

use crate::LogFormat;

/// A format of `tracing_subscriber`, and the ids of the current span behind it.
pub(super) struct WithTrace<F> {
    pub(super) lines: F,
    pub(super) format: LogFormat,
}

impl<S, N, F> FormatEvent<S, N> for WithTrace<F>
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
    N: for<'writer> FormatFields<'writer> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let span = Context::map_current(|context| context.span().span_context().clone());
        if !span.is_valid() {
            return self.lines.format_event(ctx, writer, event);
        }
        let mut line = String::new();
        self.lines
            .format_event(ctx, Writer::new(&mut line), event)?;
        with_ids(&mut line, self.format, &span);
        writer.write_str(&line)
    }
}

/// Adds the ids to the end of a line, before what ends it.
fn with_ids(line: &mut String, format: LogFormat, span: &SpanContext) {
    let (trace, id) = (span.trace_id(), span.span_id());
    let end = match format {
        LogFormat::Text => "\n",
        LogFormat::Json => "}\n",
    };
    if let Some(start) = line.strip_suffix(end) {
        line.truncate(start.len());
        line.push_str(&match format {
            LogFormat::Text => format!(" {}={trace} {}={id}", log::TRACE_ID, log::SPAN_ID),
            LogFormat::Json => {
                format!(
                    r#","{}":"{trace}","{}":"{id}""#,
                    log::TRACE_ID,
                    log::SPAN_ID
                )
            }
        });
        line.push_str(end);
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{SpanId, TraceFlags, TraceId, TraceState};

    use super::*;

    #[test]
    fn a_line_keeps_its_shape() {
        let flags = TraceFlags::SAMPLED;
        let state = TraceState::NONE;
        let span = SpanContext::new(TraceId::from(10), SpanId::from(11), flags, false, state);
        let trace = "0000000000000000000000000000000a";
        for (format, line, wanted) in [
            (
                LogFormat::Text,
                "INFO ready\n",
                format!("INFO ready trace_id={trace} span_id=000000000000000b\n"),
            ),
            (
                LogFormat::Json,
                "{\"level\":\"INFO\"}\n",
                format!(
                    "{{\"level\":\"INFO\",\"trace_id\":\"{trace}\",\"span_id\":\"000000000000000b\"}}\n"
                ),
            ),
        ] {
            let mut line = line.to_owned();
            with_ids(&mut line, format, &span);
            assert_eq!(line, wanted);
        }
    }
}
