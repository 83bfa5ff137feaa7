//! What things can look like.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::picture::Picture;

/// The side of the box that each thing has to itself, in px.
pub(super) const BOX: usize = 64;

/// A thing without its colour and place.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum Form {
    /// "star", "big".
    Object {
        /// One of six.
        shape: String,
        /// One of three.
        size: String,
    },
    /// "A" to "Z".
    Letter {
        /// One capital.
        letter: String,
    },
}

/// The colours, and every form as a mask.
#[derive(Debug)]
pub struct Palette {
    /// sRGB.
    pub backgrounds: BTreeMap<String, [u8; 3]>,
    /// sRGB, of things.
    pub colours: BTreeMap<String, [u8; 3]>,
    /// Each with its coverage of the box (64 x 64, row-major, 0 to 255).
    pub forms: Vec<(Form, Vec<u8>)>,
}

#[derive(Deserialize)]
struct File {
    backgrounds: BTreeMap<String, [u8; 3]>,
    colours: BTreeMap<String, [u8; 3]>,
    forms: Vec<Form>,
}

impl Palette {
    /// Of `tests/data/demo`.
    pub fn load() -> Self {
        let file: File = serde_json::from_str(include_str!("../../data/demo/palette.json"))
            .expect("the palette is JSON of this shape");
        let masks = Picture::decode_gray(include_bytes!("../../data/demo/forms.png"))
            .expect("the forms are a grey PNG");
        let masks = masks.chunks_exact(BOX * BOX).map(<[u8]>::to_vec);
        Self {
            backgrounds: file.backgrounds,
            colours: file.colours,
            forms: file.forms.into_iter().zip(masks).collect(),
        }
    }
}
