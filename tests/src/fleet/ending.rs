//! A fleet's end, as at a deploy.

use std::time::Duration;

use super::Fleet;

/// A process's own time to end, its spans' and a loaded machine's.
pub const END_WITHIN: Duration = Duration::from_secs(20);

impl Fleet {
    /// SIGTERM for every process; each ends by itself, and has sent its spans by then.
    pub async fn terminate(&mut self) {
        let workers = self.denoisers.iter_mut().chain([&mut self.ar_batcher]);
        for process in workers.chain([&mut self.gateway_process]) {
            let status = process.terminate(END_WITHIN).await;
            assert!(status.success(), "{status}");
        }
    }
}
