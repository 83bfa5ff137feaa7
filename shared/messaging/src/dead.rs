//! The dead letters: stored by workers, looked at and dropped by operators.

use bytes::Bytes;
use protocol::{DeadLetter, OutputId, Subject, decode, encode};

use crate::{
    bus::Bus,
    error::{BusError, PublishError},
};

/// Most dead letters that [`Bus::dead_letters`] lists: more are a defect of the fleet, and the first thousand tell
/// which.
pub const DEAD_LETTERS_LISTED_MAX: u32 = 1_000;

impl Bus {
    /// Stores a dead letter, unless its output has one.
    pub async fn publish_dead_letter(&self, letter: &DeadLetter) -> Result<(), PublishError> {
        let subject = self.prefix().subject(&Subject::Dead(letter.output));
        self.create(subject, encode(letter)?).await.map(|_| ())
    }

    /// The dead letters, at most [`DEAD_LETTERS_LISTED_MAX`], in the order of their outputs.
    pub async fn dead_letters(&self) -> Result<Vec<DeadLetter>, BusError> {
        let (stream, pattern) = (&self.topology().dead.name, self.prefix().dead_pattern());
        let stored = self
            .last_of_all(stream, &pattern, DEAD_LETTERS_LISTED_MAX)
            .await?;
        let mut letters = Vec::with_capacity(stored.len());
        for message in stored {
            letters.push(read(&message.payload)?);
        }
        letters.sort_by_key(|letter| letter.output);
        Ok(letters)
    }

    /// The dead letter of `output`.
    pub async fn dead_letter(&self, output: OutputId) -> Result<Option<DeadLetter>, BusError> {
        let subject = self.prefix().subject(&Subject::Dead(output));
        let stored = self.last(&self.topology().dead.name, &subject).await?;
        stored.map(|message| read(&message.payload)).transpose()
    }

    /// Removes the dead letter of `output`; says whether there was one.
    pub async fn drop_dead_letter(&self, output: OutputId) -> Result<bool, BusError> {
        let subject = self.prefix().subject(&Subject::Dead(output));
        let purged = self.purge(&self.topology().dead.name, &subject).await?;
        Ok(purged > 0)
    }
}

fn read(payload: &Bytes) -> Result<DeadLetter, BusError> {
    decode(payload).map_err(|source| BusError::Decode {
        what: "dead letter".to_owned(),
        source,
    })
}
