//! The answer to `POST /generate`, row by row: what is painted from it, or why it is of no use. Pure.

use model::TargetGrids;
use protocol::{ErrorCode, JobError, PriorTokens, PriorTokensError, PriorUsage};
use serde::Deserialize;
use serde_json::Value;

use super::request::SrtRow;
use crate::engine::{Prior, RowOutcome};

/// Longest part of a server's own words in an error.
pub(crate) const SERVER_TEXT_CHARS_MAX: usize = 160;

/// One entry of the answer. SRT sends more, which nobody here needs.
#[derive(Deserialize)]
struct Item {
    output_ids: Vec<i64>,
    meta_info: MetaInfo,
}

#[derive(Deserialize)]
struct MetaInfo {
    /// The row's `rid`.
    id: Option<String>,
    finish_reason: Option<FinishReason>,
    prompt_tokens: Option<u32>,
    completion_tokens: Option<u32>,
}

#[derive(Deserialize)]
struct FinishReason {
    #[serde(rename = "type")]
    kind: String,
    message: Option<String>,
}

/// The answer has not one entry for each row: nobody can say which is whose.
#[derive(Debug, thiserror::Error)]
#[error("answered {found} rows of {wanted}")]
pub(crate) struct WrongLength {
    found: usize,
    wanted: usize,
}

/// What is wrong with a row's entry.
#[derive(Debug, thiserror::Error)]
enum RowError {
    #[error("its entry cannot be read")]
    Unreadable(#[source] serde_json::Error),
    #[error("its entry is that of {0}")]
    OtherRow(String),
    #[error("it was aborted there: {0}")]
    Aborted(String),
    #[error("{found} ids came, its picture takes {wanted}")]
    TooFewIds { found: usize, wanted: usize },
    #[error("id {id} came, the codebook ends at {codebook_size}")]
    IdOutOfRange { id: i64, codebook_size: u32 },
    #[error("its meta_info has no {0}")]
    NoUsage(&'static str),
    #[error("its grid does not hold together")]
    Grid(#[from] PriorTokensError),
}

impl RowError {
    fn code(&self) -> ErrorCode {
        match self {
            Self::TooFewIds { .. } | Self::IdOutOfRange { .. } | Self::Grid(_) => {
                ErrorCode::PriorTokensInvalid
            }
            Self::Unreadable(_) | Self::OtherRow(_) | Self::Aborted(_) | Self::NoUsage(_) => {
                ErrorCode::ArFailed
            }
        }
    }
}

/// The outcome of each row. What is wrong with one entry is its own row's only.
///
/// # Errors
///
/// Another number of entries than rows.
pub(crate) fn outcomes(
    rows: &[SrtRow],
    rids: &[String],
    answer: Vec<Value>,
    codebook_size: u32,
) -> Result<Vec<RowOutcome>, WrongLength> {
    if answer.len() != rows.len() {
        return Err(WrongLength {
            found: answer.len(),
            wanted: rows.len(),
        });
    }
    let outcome = |((row, rid), item): ((&SrtRow, &String), Value)| {
        prior(row.grids, rid, item, codebook_size).map_err(|error| {
            let text = format!("SRT, row {rid}: {}", service::exit::chain(&error));
            JobError::new(error.code(), &text)
        })
    };
    Ok(rows.iter().zip(rids).zip(answer).map(outcome).collect())
}

fn prior(
    grids: TargetGrids,
    rid: &str,
    item: Value,
    codebook_size: u32,
) -> Result<Prior, RowError> {
    let Item {
        output_ids,
        meta_info,
    } = serde_json::from_value(item).map_err(RowError::Unreadable)?;
    if let Some(id) = meta_info.id.filter(|id| id != rid) {
        return Err(RowError::OtherRow(id));
    }
    if let Some(reason) = meta_info.finish_reason
        && reason.kind == "abort"
    {
        let message = reason.message.unwrap_or_default();
        return Err(RowError::Aborted(shortened(&message)));
    }
    let usage = PriorUsage {
        prompt_tokens: meta_info
            .prompt_tokens
            .ok_or(RowError::NoUsage("prompt_tokens"))?,
        generated_tokens: meta_info
            .completion_tokens
            .ok_or(RowError::NoUsage("completion_tokens"))?,
        cached: false,
    };
    let (offset, large) = (grids.preview.tokens(), grids.large);
    let wanted = offset + large.tokens();
    let too_few = RowError::TooFewIds {
        found: output_ids.len(),
        wanted,
    };
    let ids = output_ids.get(offset..wanted).ok_or(too_few)?;
    // The preview and the end are never painted: whatever is there hurts nobody.
    let ids = ids.iter().map(|id| in_codebook(*id, codebook_size));
    let ids = ids.collect::<Result<Vec<_>, _>>()?;
    let side = |tokens: u32| u16::try_from(tokens).unwrap_or(u16::MAX);
    let tokens = PriorTokens::new(side(large.h), side(large.w), ids)?;
    Ok(Prior { tokens, usage })
}

fn in_codebook(id: i64, codebook_size: u32) -> Result<u16, RowError> {
    let found = u16::try_from(id).ok();
    let found = found.filter(|found| u32::from(*found) < codebook_size);
    found.ok_or(RowError::IdOutOfRange { id, codebook_size })
}

/// The start of what a server says. It has seen ids and no text, so there is no prompt in it.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(SERVER_TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use model::ImageSize;
    use protocol::{JobId, OutputIndex, Seed};
    use serde_json::json;

    use super::*;

    const CODEBOOK_SIZE: u32 = 16_384;

    /// Of a picture of 64 x 32: a large grid of 1 x 2, behind a preview of 11 x 22.
    fn row() -> SrtRow {
        let size = ImageSize {
            height: 32,
            width: 64,
        };
        SrtRow {
            output: JobId::from_u128(7).output(OutputIndex::new(0).expect("an index")),
            ids: vec![1, 2, 3],
            grids: TargetGrids::of(size).expect("a size"),
            seed: Seed::new(7).expect("in range"),
        }
    }

    const PREVIEW: usize = 11 * 22;

    /// What SRT answers when all is well: the preview of ids 9, then `large`, then the end.
    fn item(rid: &str, large: &[i64]) -> Value {
        let mut ids = vec![9; PREVIEW];
        ids.extend(large);
        ids.push(16_385);
        json!({
            "text": "",
            "output_ids": ids,
            "meta_info": {
                "id": rid,
                "finish_reason": {"type": "length", "length": ids.len()},
                "prompt_tokens": 3,
                "weight_version": "default",
                "completion_tokens": ids.len(),
                "cached_tokens": 0,
            },
        })
    }

    fn codes(items: Vec<Value>) -> Result<Vec<Option<ErrorCode>>, WrongLength> {
        let (rows, rids) = (vec![row(); 3], ["a", "b", "c"].map(str::to_owned));
        let outcomes = outcomes(&rows, &rids, items, CODEBOOK_SIZE)?;
        let code = |outcome: &RowOutcome| outcome.as_ref().err().map(|error| error.code);
        Ok(outcomes.iter().map(code).collect())
    }

    #[test]
    fn the_large_grid_is_what_follows_the_preview() {
        let rids = ["a".to_owned()];
        let answer = vec![item("a", &[7, 16_383])];
        let outcomes = outcomes(&[row()], &rids, answer, CODEBOOK_SIZE).expect("one row");
        let prior = outcomes[0].clone().expect("a good row");
        assert_eq!(prior.tokens.ids(), [7, 16_383]);
        assert_eq!((prior.tokens.rows(), prior.tokens.columns()), (1, 2));
        let usage = (prior.usage.prompt_tokens, prior.usage.generated_tokens);
        assert_eq!(usage, (3, PREVIEW as u32 + 3));
    }

    /// What is done to a good entry, and how its row fails then.
    type Break = (&'static str, fn(&mut Value), ErrorCode);
    const BREAKS: [Break; 13] = [
        (
            "an id below 0",
            |item| item["output_ids"][PREVIEW] = json!(-1),
            ErrorCode::PriorTokensInvalid,
        ),
        (
            "an id at the codebook's end",
            |item| item["output_ids"][PREVIEW + 1] = json!(16_384),
            ErrorCode::PriorTokensInvalid,
        ),
        (
            "an id that no u16 holds",
            |item| item["output_ids"][PREVIEW] = json!(65_543),
            ErrorCode::PriorTokensInvalid,
        ),
        (
            "no ids",
            |item| item["output_ids"] = json!([]),
            ErrorCode::PriorTokensInvalid,
        ),
        (
            "one id too few",
            |item| item["output_ids"] = json!(vec![9; PREVIEW + 1]),
            ErrorCode::PriorTokensInvalid,
        ),
        (
            "an early end",
            |item| {
                item["output_ids"] = json!(vec![9; 5]);
                item["meta_info"]["finish_reason"] = json!({"type": "stop", "matched": 16_385});
            },
            ErrorCode::PriorTokensInvalid,
        ),
        (
            "an abort",
            |item| item["meta_info"]["finish_reason"] = json!({"type": "abort", "message": "m"}),
            ErrorCode::ArFailed,
        ),
        (
            "another row's entry",
            |item| item["meta_info"]["id"] = json!("a"),
            ErrorCode::ArFailed,
        ),
        (
            "no prompt_tokens",
            |item| item["meta_info"]["prompt_tokens"] = Value::Null,
            ErrorCode::ArFailed,
        ),
        (
            "no completion_tokens",
            |item| item["meta_info"]["completion_tokens"] = Value::Null,
            ErrorCode::ArFailed,
        ),
        (
            "no meta_info",
            |item| item["meta_info"] = Value::Null,
            ErrorCode::ArFailed,
        ),
        (
            "ids that are none",
            |item| item["output_ids"][0] = json!("9"),
            ErrorCode::ArFailed,
        ),
        ("no object", |item| *item = json!([]), ErrorCode::ArFailed),
    ];

    #[test]
    fn a_bad_entry_is_its_own_rows_only() {
        for (what, break_it, code) in BREAKS {
            let mut bad = item("b", &[1, 2]);
            break_it(&mut bad);
            let found = codes(vec![item("a", &[1, 2]), bad, item("c", &[1, 2])]);
            assert_eq!(
                found.expect("three rows"),
                [None, Some(code), None],
                "{what}"
            );
        }
    }

    #[test]
    fn what_is_never_painted_is_not_judged() {
        let mut odd = item("a", &[1, 2]);
        odd["output_ids"][0] = json!(-5);
        // A server that names no row, and none of the reasons of an end.
        odd["meta_info"] = json!({"prompt_tokens": 1, "completion_tokens": 1});
        let found = codes(vec![odd, item("b", &[1, 2]), item("c", &[1, 2])]);
        assert_eq!(found.expect("three rows"), [None; 3]);
    }

    #[test]
    fn an_error_names_its_row_and_is_short() {
        let mut aborted = item("a", &[1, 2]);
        let reason = json!({"type": "abort", "message": "x".repeat(10_000)});
        aborted["meta_info"]["finish_reason"] = reason;
        let rids = ["a".to_owned()];
        let outcomes = outcomes(&[row()], &rids, vec![aborted], CODEBOOK_SIZE);
        let error = outcomes.expect("one row")[0].clone().expect_err("aborted");
        assert!(error.text.starts_with("SRT, row a: "), "{error}");
        assert!(error.text.len() < SERVER_TEXT_CHARS_MAX + 60, "{error}");
    }

    #[test]
    fn another_number_of_entries_is_nobodys() {
        for count in [0, 2, 4] {
            assert!(codes(vec![item("a", &[1, 2]); count]).is_err(), "{count}");
        }
    }
}
