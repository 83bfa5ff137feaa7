//! What a fleet is made of.

use std::{path::PathBuf, time::Duration};

use protocol::limits::ACK_WAIT;
use replay::{ArTimes, DenoiseTimes, Table};

use crate::tiny_model;

/// The ack deadline of [`Fleet::replay`](super::Fleet::replay).
pub const REPLAY_ACK_WAIT: Duration = Duration::from_secs(3);

/// Engines that only just take a time.
pub const QUICK: Table = Table {
    ar: ArTimes::new(&[(1, 5.0)], 254),
    denoise: DenoiseTimes {
        step_ms: 5.0,
        decode_ms: 2.0,
    },
};

/// Who writes and paints.
#[derive(Debug, Clone)]
pub enum Engine {
    /// This checkpoint on libtorch.
    Model(PathBuf),
    /// The replay engines with these times, and with the faults of [`Fleet::script`](super::Fleet::script).
    Replay(Table),
    /// As [`Engine::Replay`], but the AR-batcher asks SRT servers and tokenizes with the tiny checkpoint.
    Srt {
        /// Their URLs.
        urls: Vec<String>,
        /// Of the denoisers.
        table: Table,
    },
}

/// What a fleet is made of.
#[derive(Debug, Clone)]
pub struct Size {
    /// Denoisers.
    pub denoisers: usize,
    /// The broker's deadline for a silent worker.
    pub ack_wait: Duration,
    /// Of every worker.
    pub engine: Engine,
    /// Flags of the AR-batcher besides.
    pub ar_flags: &'static [&'static str],
    /// Flags of every process besides, the gateway's too.
    pub shell_flags: Vec<String>,
}

impl Default for Size {
    fn default() -> Self {
        Self {
            denoisers: 2,
            ack_wait: ACK_WAIT,
            engine: Engine::Model(tiny_model()),
            ar_flags: &[],
            shell_flags: Vec::new(),
        }
    }
}

impl Size {
    /// Of a replay fleet. Its ack deadline is short, so that a lost worker does not cost 15 s.
    pub(super) fn replay(denoisers: usize, table: Table) -> Self {
        Self {
            denoisers,
            ack_wait: REPLAY_ACK_WAIT,
            engine: Engine::Replay(table),
            ..Self::default()
        }
    }
}
