//! Spans as trees: who is whose child, how long each took, what it carries.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use opentelemetry_proto::tonic::{
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::{Span, span::Event, span::SpanKind, status::StatusCode},
};

/// A span and the process that it is of.
#[derive(Debug, Clone)]
pub struct Captured {
    /// As it came.
    pub span: Span,
    /// Attributes of the process.
    pub resource: Arc<[KeyValue]>,
}

impl Captured {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.span.name
    }

    /// Trace and span as the header `traceparent` of what it calls has them, sampled.
    pub fn traceparent(&self) -> String {
        let Span {
            trace_id, span_id, ..
        } = &self.span;
        format!("00-{}-{}-01", hex(trace_id), hex(span_id))
    }

    /// A text of its own.
    pub fn text(&self, name: &str) -> Option<&str> {
        text(&self.span.attributes, name)
    }

    /// A whole number of its own.
    pub fn number(&self, name: &str) -> Option<i64> {
        number(&self.span.attributes, name)
    }

    /// A text of its process.
    pub fn process(&self, name: &str) -> Option<&str> {
        text(&self.resource, name)
    }

    /// Whether something went wrong.
    pub fn failed(&self) -> bool {
        let status = self.span.status.as_ref();
        status.is_some_and(|status| status.code() == StatusCode::Error)
    }

    /// Which kind it is.
    pub fn kind(&self) -> SpanKind {
        self.span.kind()
    }

    /// The events of this name, in order.
    pub fn events(&self, name: &str) -> Vec<&Event> {
        let events = self.span.events.iter();
        events.filter(|event| event.name == name).collect()
    }

    /// When it began and ended, in seconds of the Unix epoch.
    pub fn interval(&self) -> (f64, f64) {
        // Microseconds are enough.
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let span = &self.span;
        (
            seconds(span.start_time_unix_nano),
            seconds(span.end_time_unix_nano),
        )
    }

    /// How long it took.
    pub fn seconds(&self) -> f64 {
        let (start, end) = self.interval();
        end - start
    }
}

/// The text under this name.
pub fn text<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    match value(attributes, name)? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

/// The whole number under this name.
pub fn number(attributes: &[KeyValue], name: &str) -> Option<i64> {
    match value(attributes, name)? {
        Value::IntValue(number) => Some(*number),
        _ => None,
    }
}

/// Whatever is under this name.
pub fn value<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a Value> {
    let attribute = attributes.iter().find(|attribute| attribute.key == name)?;
    let AnyValue { value } = attribute.value.as_ref()?;
    value.as_ref()
}

/// The spans of one trace.
#[derive(Debug)]
pub struct Tree {
    /// In the order of their starts.
    pub spans: Vec<Captured>,
    by_id: HashMap<Vec<u8>, usize>,
}

impl Tree {
    /// The trace of this id, in hexadecimal digits.
    pub fn of(captured: &[Captured], trace_id: &str) -> Self {
        let of_trace = captured
            .iter()
            .filter(|captured| hex(&captured.span.trace_id) == trace_id);
        Self::whole(of_trace.cloned().collect())
    }

    /// Every trace, by its id in hexadecimal digits.
    pub fn all(captured: &[Captured]) -> BTreeMap<String, Self> {
        let mut by_trace: BTreeMap<&[u8], Vec<Captured>> = BTreeMap::new();
        for span in captured {
            let trace = by_trace.entry(&span.span.trace_id).or_default();
            trace.push(span.clone());
        }
        let traces = by_trace.into_iter();
        traces
            .map(|(id, spans)| (hex(id), Self::whole(spans)))
            .collect()
    }

    fn whole(mut spans: Vec<Captured>) -> Self {
        spans.sort_by_key(|captured| captured.span.start_time_unix_nano);
        let ids = spans.iter().map(|captured| captured.span.span_id.clone());
        let by_id = ids.zip(0..).collect();
        Self { spans, by_id }
    }

    /// Those of this name, in the order of their starts.
    pub fn named(&self, name: &str) -> Vec<&Captured> {
        let spans = self.spans.iter();
        spans.filter(|captured| captured.name() == name).collect()
    }

    /// The only one of this name.
    #[track_caller]
    pub fn only(&self, name: &str) -> &Captured {
        match self.named(name).as_slice() {
            [span] => span,
            spans => panic!("{} spans named {name} in:\n{}", spans.len(), self.shown()),
        }
    }

    /// Whose child it is; `None` for one whose parent is not in the trace.
    pub fn parent(&self, of: &Captured) -> Option<&Captured> {
        let at = self.by_id.get(&of.span.parent_span_id)?;
        self.spans.get(*at)
    }

    /// Those it descends from, the nearest first.
    pub fn ancestors(&self, of: &Captured) -> Vec<&Captured> {
        std::iter::successors(self.parent(of), |span| self.parent(span)).collect()
    }

    /// Their names.
    pub fn ancestry(&self, of: &Captured) -> Vec<&str> {
        let ancestors = self.ancestors(of).into_iter();
        ancestors.map(Captured::name).collect()
    }

    /// Those whose parent is not in the trace: one, in a whole tree.
    pub fn roots(&self) -> Vec<&Captured> {
        let spans = self.spans.iter();
        spans.filter(|span| self.parent(span).is_none()).collect()
    }

    /// For a person who looks at a failed test.
    pub fn shown(&self) -> String {
        let start = self.spans.first().map_or(0.0, |first| first.interval().0);
        let mut lines = String::new();
        for span in &self.spans {
            let depth = self.ancestry(span).len();
            let (from, to) = span.interval();
            let line = format!(
                "{:indent$}{} {:.3}..{:.3}{}\n",
                "",
                span.name(),
                from - start,
                to - start,
                if span.failed() { " FAILED" } else { "" },
                indent = 2 * depth
            );
            lines.push_str(&line);
        }
        lines
    }
}

/// As ids are written.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
