//! A model folder in the layout of the published zai-org/GLM-Image: which parts it has and where.
//! Knows names and classes only; each part reads its own config and weights.

use std::path::{Path, PathBuf};
use std::{fmt, iter};

use serde_json::{Map, Value};

use crate::config::{expect_class, read_json};
use crate::error::{ModelError, Result};
use crate::weights::PartReport;

/// Part and class, as the pipeline that this crate reproduces names them.
pub(crate) const PARTS: [(&str, &str); 7] = [
    ("processor", "GlmImageProcessor"),
    ("scheduler", "FlowMatchEulerDiscreteScheduler"),
    ("text_encoder", "T5EncoderModel"),
    ("tokenizer", "ByT5Tokenizer"),
    ("transformer", "GlmImageTransformer2DModel"),
    ("vae", "AutoencoderKL"),
    (
        "vision_language_encoder",
        "GlmImageForConditionalGeneration",
    ),
];

/// A folder whose `model_index.json` says that it is this pipeline with these parts.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    dir: PathBuf,
}

impl Checkpoint {
    /// Refuses another pipeline, and another class for a part, by name.
    pub fn open(dir: &Path) -> Result<Self> {
        let index_path = dir.join("model_index.json");
        let index: Map<String, Value> = read_json(&index_path)?;
        expect_class(
            &index_path,
            "_class_name",
            index.get("_class_name"),
            "GlmImagePipeline",
        )?;
        for (part, class) in PARTS {
            // [library, class]; the library is named differently by different versions.
            expect_class(
                &index_path,
                part,
                index.get(part).and_then(|entry| entry.get(1)),
                class,
            )?;
            let part_dir = dir.join(part);
            if !part_dir.is_dir() {
                return Err(ModelError::config(
                    &index_path,
                    part,
                    "has no folder of that name",
                ));
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The folder of one part, such as `transformer`.
    pub fn part(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }
}

/// What `--check-model` prints: one line a part, then the total.
#[derive(Debug, Clone, Default)]
pub struct CheckReport {
    pub parts: Vec<(String, PartReport)>,
}

impl CheckReport {
    pub fn total(&self) -> PartReport {
        self.parts
            .iter()
            .fold(PartReport::default(), |sum, (_, part)| sum + *part)
    }
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = ("total".to_owned(), self.total());
        for (i, (name, part)) in self.parts.iter().chain(iter::once(&total)).enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{name}: {part}")?;
        }
        Ok(())
    }
}
