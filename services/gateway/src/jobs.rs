//! Open jobs. One task owns each: it queues the job, takes its results as they come, and ends what is missing at the
//! deadline. A request only listens to that task, so that a client may leave at any moment without harm: the job
//! goes on, its deadline is kept, and pictures nobody waits for are dropped on arrival.
//!
//! It must not know HTTP beyond the refusals it answers with.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use messaging::{Bus, BusError, Fence, JobWatch, ProgressByOutput, Results, WATCHES_MAX};
use protocol::{ErrorCode, JobError, JobId, JobRecord, OutputIndex, OutputResult};
use service::clock::unix_millis;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument;

use crate::{
    outcome::{Absence, Ended, EndedByOutput, too_late},
    reply::ApiError,
    request::ImageRequest,
    submit::{Admission, Order, draw_seed},
};

/// Most jobs one gateway follows at once: as many as `messaging` watches. A job costs some kilobytes here, plus its
/// pictures (2 MB each at 1024x1024) from arrival until they are sent.
const JOBS_OPEN_MAX: usize = WATCHES_MAX;

/// Opens jobs and knows the open ones. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Jobs {
    bus: Bus,
    results: Results,
    /// One permit an open job.
    slots: Arc<Semaphore>,
    /// Locked for single map operations only.
    open: Arc<Mutex<HashMap<JobId, OpenJob>>>,
    timeout: Duration,
    tracker: TaskTracker,
    /// Ends every job's task; the jobs themselves go on without this gateway.
    stop: CancellationToken,
}

/// A view of an open job.
#[derive(Debug, Clone)]
pub(crate) struct OpenJob {
    pub(crate) record: Arc<JobRecord>,
    pub(crate) ended: watch::Receiver<EndedByOutput>,
    pub(crate) progress: watch::Receiver<ProgressByOutput>,
}

/// A job that is queued, and its results as they come; the channel closes after the last one.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) record: Arc<JobRecord>,
    pub(crate) results: mpsc::Receiver<OutputResult>,
}

/// What a job's task works with.
struct Run {
    order: Order,
    deadline: Instant,
    accepted: oneshot::Sender<Result<Arc<JobRecord>, ApiError>>,
    results: mpsc::Sender<OutputResult>,
    _slot: OwnedSemaphorePermit,
}

impl Jobs {
    pub(crate) fn new(
        bus: Bus,
        results: Results,
        timeout: Duration,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(JOBS_OPEN_MAX));
        Self {
            bus,
            results,
            slots,
            open: Arc::default(),
            timeout,
            tracker,
            stop,
        }
    }

    /// Queues a job. Once this returns the job ends, with or without the caller.
    pub(crate) async fn accept(&self, request: ImageRequest) -> Result<Accepted, ApiError> {
        let full = |_| {
            ApiError::new(
                ErrorCode::QueueFull,
                "too many jobs are open at this gateway",
            )
        };
        let slot = Arc::clone(&self.slots).try_acquire_owned().map_err(full)?;
        let admission = Admission {
            job: JobId::generate(),
            drawn_seed: draw_seed(),
            accepted_at: unix_millis(),
            timeout: self.timeout,
        };
        let deadline = Instant::now() + self.timeout;
        let order = Order::new(request, &admission);
        let (accepted, answer) = oneshot::channel();
        let (results, received) = mpsc::channel(order.record.outputs.len());
        let run = Run {
            order,
            deadline,
            accepted,
            results,
            _slot: slot,
        };
        let span = tracing::info_span!("job", job = %admission.job);
        let jobs = self.clone();
        self.tracker
            .spawn(async move { jobs.run(run).await }.instrument(span));
        let stopped = |_| ApiError::new(ErrorCode::NotReady, "the gateway is stopping");
        let record = answer.await.map_err(stopped)??;
        Ok(Accepted {
            record,
            results: received,
        })
    }

    /// The view of `job`, if it is open here.
    pub(crate) fn open(&self, job: JobId) -> Option<OpenJob> {
        self.lock().get(&job).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<JobId, OpenJob>> {
        // A panic between two map operations leaves a whole map.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(self, run: Run) {
        let Run {
            order,
            deadline,
            accepted,
            results,
            _slot,
        } = run;
        let Order { record, ar_job } = order;
        let record = Arc::new(record);
        let job = record.job;
        let outputs = u8::try_from(record.outputs.len()).expect("a request has at most 10 outputs");
        // Watched before it is published: its first result may come before the publish returns.
        let watch = match self.results.watch(job, outputs) {
            Ok(watch) => watch,
            Err(full) => {
                return refuse(
                    accepted,
                    ApiError::new(ErrorCode::QueueFull, &full.to_string()),
                );
            }
        };
        let published = async {
            self.bus.create_job(&record).await?;
            self.bus.publish_ar_job(&ar_job).await
        };
        let published = tokio::select! {
            published = published => published,
            () = self.stop.cancelled() => return,
        };
        if let Err(error) = published {
            tracing::warn!(error = service::exit::chain(&error), "job was not queued");
            let refusal = ApiError::new(error.code(), refusal_text(error.code()));
            // A job that was not confirmed may be queued all the same: its id is worth knowing.
            let unsure = error.code() == ErrorCode::BusUnavailable;
            let refusal = if unsure { refusal.of_job(job) } else { refusal };
            return refuse(accepted, refusal);
        }
        drop(ar_job);
        tracing::debug!(outputs, size = %record.size, "job is queued");
        let (ended, ended_seen) = watch::channel(EndedByOutput::new());
        let view = OpenJob {
            record: Arc::clone(&record),
            ended: ended_seen,
            progress: watch.progress(),
        };
        self.lock().insert(job, view);
        let _listed = Listed { jobs: &self, job };
        if accepted.send(Ok(Arc::clone(&record))).is_err() {
            tracing::debug!("client left before its job was queued; the job goes on");
        }
        let follow = Follow {
            jobs: &self,
            record: &record,
            deadline,
            ended,
            results,
        };
        tokio::select! {
            () = follow.run(watch) => {}
            () = self.stop.cancelled() => tracing::debug!("job goes on without this gateway"),
        }
    }

    /// Ends `output`, unless it has a result already. Returns the result it has in the end; while that is not known,
    /// because the broker does not answer, it says so instead of guessing: it may be a picture.
    pub(crate) async fn end_late(&self, record: &JobRecord, index: OutputIndex) -> OutputResult {
        let mut late = too_late(record, index, unix_millis());
        let unknown = match self.bus.put_result(&late).await {
            Ok(Fence::First) => return late,
            Ok(Fence::Taken) => match self.bus.result(late.output).await {
                Ok(Some(result)) => return result,
                Ok(None) => "not to be found".to_owned(),
                Err(error) => service::exit::chain(&error),
            },
            Err(error) => service::exit::chain(&error),
        };
        tracing::warn!(error = unknown, output = %late.output, "the end of a late output is not known");
        let text =
            "the deadline passed, and how the output ended is not known yet: ask for the job again";
        late.outcome = Err(JobError::new(ErrorCode::BusUnavailable, text));
        late
    }

    /// Ends every output that is not in `ended`.
    async fn end_all_late(&self, record: &JobRecord, ended: &EndedByOutput) -> Vec<OutputResult> {
        let missing = record
            .outputs
            .iter()
            .map(|output| output.index)
            .filter(|index| !ended.contains_key(index));
        join_all(missing.map(|index| self.end_late(record, index))).await
    }

    /// What the bus knows about a job, open here or not; `None` when its results have run out.
    pub(crate) async fn stored(
        &self,
        record: &JobRecord,
    ) -> Result<Option<EndedByOutput>, BusError> {
        let mut ended = EndedByOutput::new();
        // One by one, so that one picture at a time is in memory.
        for output in &record.outputs {
            if let Some(result) = self.bus.result(record.job.output(output.index)).await? {
                ended.insert(output.index, Ended::from(&result));
            }
        }
        if ended.len() == record.outputs.len() {
            return Ok(Some(ended));
        }
        match Absence::at(unix_millis(), record) {
            Absence::Running => {}
            Absence::Overdue => {
                let late = self.end_all_late(record, &ended).await;
                ended.extend(
                    late.iter()
                        .map(|result| (result.output.index, Ended::from(result))),
                );
            }
            Absence::Gone => return Ok(None),
        }
        Ok(Some(ended))
    }
}

/// Tells the waiting request, if it still waits.
fn refuse(accepted: oneshot::Sender<Result<Arc<JobRecord>, ApiError>>, error: ApiError) {
    if accepted.send(Err(error)).is_err() {
        tracing::debug!("client left before its job was refused");
    }
}

/// What a client is told of a job that could not be queued; the broker's own words stay in the log.
fn refusal_text(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::QueueFull => "the queue of requests is full",
        ErrorCode::BusUnavailable => "the message broker did not confirm the job in time",
        _ => "the job could not be queued",
    }
}

/// Takes the job off the list, however its task ends.
struct Listed<'a> {
    jobs: &'a Jobs,
    job: JobId,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.jobs.lock().remove(&self.job);
    }
}

/// From queued to ended.
struct Follow<'a> {
    jobs: &'a Jobs,
    record: &'a JobRecord,
    deadline: Instant,
    ended: watch::Sender<EndedByOutput>,
    results: mpsc::Sender<OutputResult>,
}

impl Follow<'_> {
    async fn run(self, mut watch: JobWatch) {
        loop {
            tokio::select! {
                result = watch.next() => match result {
                    Some(result) => self.take(result).await,
                    None => break,
                },
                () = sleep_until(self.deadline) => {
                    tracing::info!("job did not end in time");
                    let ended = self.ended.borrow().clone();
                    for result in self.jobs.end_all_late(self.record, &ended).await {
                        self.take(result).await;
                    }
                    break;
                }
            }
        }
        tracing::debug!("job has ended");
    }

    async fn take(&self, result: OutputResult) {
        if let Err(error) = &result.outcome {
            tracing::info!(output = %result.output, code = %error.code, error = error.text, "output failed");
        }
        self.ended.send_modify(|ended| {
            ended.insert(result.output.index, Ended::from(&result));
        });
        // The channel has room for all results; closed means that nobody waits for the picture.
        if self.results.send(result).await.is_err() {
            tracing::trace!("nobody waits for this result");
        }
    }
}
