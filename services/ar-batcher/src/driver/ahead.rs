//! How far this batcher runs ahead of the denoisers: what is seen of the denoise stage, for `batching` to judge.

use std::{sync::Arc, time::Duration};

use batching::{Backlog, Ends, Event, Look, Mark};
use messaging::{Bus, BusError, Noticed};
use protocol::Role;
use tokio::{sync::watch, time::Instant};

use super::{Driver, hands::News};

/// Between two looks at the broker. In between, notices of ends and this batcher's own fan-outs are counted: a look
/// only has to mend what those miss, and a denoiser that came or went is seen that much later.
pub(super) const BACKLOG_LOOK_PERIOD: Duration = Duration::from_millis(500);

/// What is known of the denoise stage.
pub(super) struct Ahead {
    backlog: Backlog,
    /// What the batch formers know: how many rows may start, and how many outputs that need none may go on.
    rows_room: usize,
    room: usize,
    noticed: watch::Receiver<Noticed>,
    /// Notices that the backlog knows of.
    counted: Noticed,
    /// Everything is given back: nothing is to start, whatever room there is.
    closed: bool,
    /// A look is under way.
    looking: bool,
}

impl Ahead {
    pub(super) fn new(outputs_max: Option<u64>, noticed: watch::Receiver<Noticed>) -> Self {
        let counted = *noticed.borrow();
        Self {
            backlog: Backlog::new(outputs_max),
            rows_room: usize::MAX,
            room: usize::MAX,
            counted,
            noticed,
            looking: false,
            closed: false,
        }
    }

    /// Returns when an output has ended, if that may make room. The sender lives in the membership.
    pub(super) async fn end_noticed(&mut self) {
        let has_room = self.room > 0 && self.rows_room > 0;
        if has_room || self.noticed.changed().await.is_err() {
            std::future::pending().await
        }
    }

    pub(super) fn fanned_out(&mut self) {
        self.backlog.fanned_out(1);
    }

    /// Rows ran on an engine for `took`.
    pub(super) fn ran(&mut self, took: Duration) {
        self.backlog.ran(took);
    }

    /// `rows` start; their batch former knows.
    pub(super) const fn started(&mut self, rows: usize) {
        self.rows_room = self.rows_room.saturating_sub(rows);
    }

    /// An output goes on without a row; its batch former knows.
    pub(super) const fn passed(&mut self) {
        self.room = self.room.saturating_sub(1);
    }

    /// Nothing is to start until [`Ahead::open`].
    pub(super) const fn close(&mut self) {
        self.closed = true;
    }

    pub(super) const fn open(&mut self) {
        self.closed = false;
    }

    /// Counts what ended since the last time.
    fn count_ends(&mut self) {
        let noticed = *self.noticed.borrow_and_update();
        let now = Instant::now().into_std();
        let ends = Ends {
            outputs: noticed.ends - self.counted.ends,
            pictures: noticed.pictures - self.counted.pictures,
        };
        self.backlog.ended(ends, now);
        self.counted = noticed;
    }
}

impl Driver {
    /// Tells the batch formers what room there is, if that is news.
    pub(super) fn see_room(&mut self) {
        self.ahead.count_ends();
        let running = self.running_outputs();
        // What is being stored has left the engine, and has not arrived yet; and what only waits for room there goes before
        // rows that would take it.
        let arriving = self.settling + self.passing.waiting();
        let backlog = &self.ahead.backlog;
        let (rows_room, room) = if self.ahead.closed {
            (0, 0)
        } else {
            (backlog.rows_room(arriving, running), backlog.room())
        };
        if rows_room != self.ahead.rows_room {
            self.ahead.rows_room = rows_room;
            self.apply(Event::Room(rows_room));
        }
        if room != self.ahead.room {
            self.ahead.room = room;
            self.pass(Event::Room(room));
        }
    }

    pub(super) fn look_ahead(&mut self) {
        if self.ahead.looking {
            return;
        }
        self.ahead.looking = true;
        self.ahead.count_ends();
        let (bench, mark) = (Arc::clone(&self.bench), self.ahead.backlog.mark());
        self.hands.task(async move {
            let look = look(&bench.member.bus).await;
            let look = look.inspect_err(|error| tracing::debug!(%error, "no look ahead"));
            News::Looked {
                mark,
                look: look.ok(),
            }
        });
    }

    /// While the broker does not answer, the last look counts.
    pub(super) fn looked_ahead(&mut self, mark: Mark, look: Option<Look>) {
        self.ahead.looking = false;
        if let Some(look) = look {
            self.ahead.backlog.looked(mark, look);
        }
        self.see_room();
    }
}

async fn look(bus: &Bus) -> Result<Look, BusError> {
    let depth = bus.depth(&bus.topology().denoise_consumer);
    let (depth, workers) = tokio::try_join!(depth, bus.workers())?;
    let of = |role| {
        let workers = workers.iter();
        let workers = workers.filter(|worker| worker.role == role && worker.state.takes_work());
        u64::try_from(workers.count()).unwrap_or(u64::MAX)
    };
    Ok(Look {
        outputs: depth.queued + depth.held,
        denoisers: of(Role::Denoiser),
        batchers: of(Role::ArBatcher),
    })
}
