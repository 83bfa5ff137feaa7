//! Pictures on their way out: how many may be in memory at once, however slowly they are read. A place belongs to bytes
//! rather than to a request, because an answer lives on in the connection after its handler has returned it.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Pictures in memory on their way out. Each has at most 16 MB, 512 MB together; the usual 2 MB make 64 MB of it. In
/// base64 it is more by a third, and three times that while the answer is written. A reader that stops has its place
/// until it leaves.
pub const PICTURES_OUT_MAX: usize = 32;

const _: () = assert!(
    PICTURES_OUT_MAX >= protocol::limits::OUTPUTS_PER_JOB_MAX as usize,
    "an answer with every picture of a job finds places"
);

/// Hands out [`PICTURES_OUT_MAX`] places.
#[derive(Debug)]
pub(crate) struct PicturesOut(Arc<Semaphore>);

/// Places for pictures that are about to be read.
#[derive(Debug)]
pub(crate) struct Places {
    _permit: OwnedSemaphorePermit,
}

/// Bytes that keep their places.
struct Kept {
    bytes: Vec<u8>,
    _places: Places,
}

impl PicturesOut {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(PICTURES_OUT_MAX)))
    }

    /// Waits, first come first served, for the places of an answer with this many pictures. Cancellation safe.
    pub(crate) async fn places(&self, pictures: u8) -> Places {
        let permit = Arc::clone(&self.0).acquire_many_owned(pictures.into());
        Places {
            _permit: permit.await.expect("nobody closes the semaphore"),
        }
    }
}

impl Places {
    /// The bytes of an answer; the places are free when the last of them is sent or dropped.
    pub(crate) fn keep(self, bytes: Vec<u8>) -> Bytes {
        Bytes::from_owner(Kept {
            bytes,
            _places: self,
        })
    }
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_kept_by_the_last_piece_of_an_answer() {
        let out = PicturesOut::new();
        let mut answer = out.places(3).await.keep(vec![1, 2, 3]);
        let piece = answer.split_to(1);
        drop(answer);
        assert_eq!(out.0.available_permits(), PICTURES_OUT_MAX - 3);
        assert_eq!(piece, [1].as_slice());
        drop(piece);
        assert_eq!(out.0.available_permits(), PICTURES_OUT_MAX);
    }
}
