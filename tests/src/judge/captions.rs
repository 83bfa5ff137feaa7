//! The captions that the model is judged by: scenes that it was never trained on.

use serde::{Deserialize, Serialize};

use super::palette::Form;

/// What a scene holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// One object.
    Single,
    /// Two objects beside or above each other.
    Pair,
    /// One letter, which the caption quotes.
    Letter,
}

/// An object or a letter, as asked for.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Thing {
    /// A name of the palette.
    pub colour: String,
    /// 0, 1, 2: top, middle, bottom.
    pub row: usize,
    /// 0, 1, 2: left, centre, right.
    pub column: usize,
    /// What it looks like.
    #[serde(flatten)]
    pub form: Form,
}

/// A scene in words and in fields.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Caption {
    /// The prompt.
    pub caption: String,
    /// How many things of which sort.
    pub kind: Kind,
    /// A name of the palette.
    pub background: String,
    /// In the order of the prompt.
    pub things: Vec<Thing>,
}

/// 200 of each kind, the kinds one after the other.
pub fn held_out() -> Vec<Caption> {
    include_str!("../../data/demo/held_out.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).expect("each line is a caption"))
        .collect()
}
