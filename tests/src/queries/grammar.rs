//! Syntax trees by the field's own grammars: npm's `@grafana/lezer-traceql` and `-logql`, which Grafana's query editors
//! run on. Set-up fetches them, node runs them.

use std::{
    collections::HashMap,
    fmt,
    sync::{Mutex, PoisonError},
};

use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::node::ask;

/// A language that a grammar is there for. Prometheus reads its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Tempo's.
    TraceQl,
    /// Loki's.
    LogQl,
}

/// A node of a syntax tree, under the grammar's own name.
#[derive(Debug, Clone, Deserialize)]
pub struct Node {
    /// What it is.
    pub name: String,
    /// Whether the parser put it there to go on after what it did not understand.
    pub error: bool,
    /// What was written.
    pub text: String,
    /// Those within, less punctuation.
    pub children: Vec<Node>,
}

#[derive(Serialize)]
struct Question<'a> {
    language: Language,
    text: &'a str,
}

/// The tree of each text, whatever is wrong with it.
pub fn parse(queries: &[(Language, &str)]) -> Vec<Node> {
    let questions: Vec<_> = queries
        .iter()
        .map(|&(language, text)| Question { language, text })
        .collect();
    ask("queries/trees.mjs", "grammars", &questions)
}

/// The tree of a query that has to be right.
#[track_caller]
pub fn parsed(language: Language, text: &str) -> Node {
    let tree = parse(&[(language, text)]).swap_remove(0);
    assert_eq!(tree.faults(), Vec::<String>::new(), "{text}");
    tree
}

impl Node {
    /// What the parser did not understand.
    pub fn faults(&self) -> Vec<String> {
        let own = self.error.then(|| match self.text.as_str() {
            "" => "something is missing".to_owned(),
            text => format!("not understood: {text}"),
        });
        let within = self.children.iter().flat_map(Self::faults);
        own.into_iter().chain(within).collect()
    }

    /// The names of its children, to match on.
    pub fn shape(&self) -> Vec<&str> {
        let names = self.children.iter().map(|child| child.name.as_str());
        names.collect()
    }

    /// The text of a string in any of the ways to quote one.
    pub fn unquoted(&self) -> Result<String, NotUnderstood> {
        let raw = self.text.strip_prefix('`');
        match raw.and_then(|text| text.strip_suffix('`')) {
            Some(raw) => Ok(raw.to_owned()),
            // Escapes are those of Go, and those that we use are JSON's too.
            None => serde_json::from_str(&self.text).map_err(|_| NotUnderstood::of(self)),
        }
    }
}

/// A pattern that has to match the whole, as both languages have it. Compiled once: it is asked for at each span and line.
pub fn anchored(pattern: &str) -> Result<Regex, NotUnderstood> {
    static COMPILED: Mutex<Option<HashMap<String, Regex>>> = Mutex::new(None);
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    let compiled = compiled.get_or_insert_default();
    if let Some(regex) = compiled.get(pattern) {
        return Ok(regex.clone());
    }
    let regex = Regex::new(&format!("^(?:{pattern})$"));
    let regex = regex.map_err(|error| NotUnderstood(error.to_string()))?;
    compiled.insert(pattern.to_owned(), regex.clone());
    Ok(regex)
}

/// An evaluator of ours does not know this: better said than guessed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotUnderstood(pub String);

impl NotUnderstood {
    /// This node is of a kind, or of a shape, that nobody wrote a meaning for.
    pub fn of(node: &Node) -> Self {
        Self(format!("{} {:?}: {}", node.name, node.shape(), node.text))
    }
}

impl fmt::Display for NotUnderstood {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the evaluator does not understand {}", self.0)
    }
}

impl std::error::Error for NotUnderstood {}
