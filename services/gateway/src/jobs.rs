//! Open jobs. One task per job and gateway owns each ([`crate::follow`]); requests only look at what it has found
//! out, any number of them, so that a client may leave at any moment without harm to anybody else.
//!
//! It must not know HTTP beyond the refusals it answers with.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use messaging::{Bus, ProgressByOutput, Results, WATCHES_MAX};
use protocol::{
    ErrorCode, IdempotencyKey, IdempotencyRecord, JobId, JobRecord,
    trace::{attribute, span, value},
};
use service::telemetry::spans;
use tokio::sync::{Semaphore, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span};

use crate::{
    counters::Counters,
    follow::Follower,
    outcome::{EndedByOutput, ResultTtl},
    reply::ApiError,
    request::MODEL,
    rooms::{Room, Rooms},
    submit::Order,
    tenants::name_of,
};

/// Most jobs one gateway follows at once: as many as `messaging` watches. A job costs some kilobytes here.
const JOBS_OPEN_MAX: usize = WATCHES_MAX;

/// Opens jobs and knows the open ones. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Jobs {
    pub(crate) bus: Bus,
    pub(crate) rooms: Rooms,
    pub(crate) counters: Counters,
    pub(crate) result_ttl: ResultTtl,
    /// What a job may take whose client does not say.
    pub(crate) job_timeout: Duration,
    pub(crate) tracker: TaskTracker,
    /// Ends every job's task; the jobs themselves go on without this gateway.
    pub(crate) stop: CancellationToken,
    results: Results,
    /// One permit a followed job.
    slots: Arc<Semaphore>,
    /// Locked for single map operations only.
    open: Arc<Mutex<HashMap<JobId, OpenJob>>>,
}

/// What [`Jobs`] works with.
#[derive(Debug)]
pub(crate) struct JobsParts {
    pub(crate) bus: Bus,
    pub(crate) results: Results,
    pub(crate) rooms: Rooms,
    pub(crate) counters: Counters,
    pub(crate) result_ttl: ResultTtl,
    pub(crate) job_timeout: Duration,
    pub(crate) tracker: TaskTracker,
    pub(crate) stop: CancellationToken,
}

/// A view of a job. Its channels close when nothing changes any more, or when the gateway stops.
#[derive(Debug, Clone)]
pub(crate) struct OpenJob {
    pub(crate) record: Arc<JobRecord>,
    pub(crate) ended: watch::Receiver<EndedByOutput>,
    pub(crate) progress: watch::Receiver<ProgressByOutput>,
    pub(crate) queueing: watch::Receiver<Queueing>,
}

/// Whether a job has been queued.
#[derive(Debug, Clone)]
pub(crate) enum Queueing {
    /// Being tried.
    Trying,
    /// It will end, with or without this gateway.
    Queued,
    /// It is not, or not surely.
    Refused(ApiError),
    /// Its key was claimed by another request in the same moment.
    Claimed(Box<IdempotencyRecord>),
}

/// Why a job is not queued.
#[derive(Debug)]
pub(crate) enum NotQueued {
    Refused(ApiError),
    Claimed(Box<IdempotencyRecord>),
}

/// What has to be done before a job can be followed.
#[derive(Debug)]
pub(crate) enum Start {
    /// Nobody knows it yet. Its places are taken.
    New(Room),
    /// Nobody knows it yet; its key is to be claimed first.
    Keyed(Room, Claiming),
    /// Somebody began with it, and may be gone, or be at it still.
    Resumed,
}

/// A claim to be made: everything in it but the record.
#[derive(Debug, Clone)]
pub(crate) struct Claiming {
    pub(crate) key: IdempotencyKey,
    pub(crate) request_digest: String,
}

impl OpenJob {
    /// A job that has ended, from what is stored.
    pub(crate) fn of_stored(record: JobRecord, ended: EndedByOutput) -> Self {
        Self {
            record: Arc::new(record),
            ended: watch::channel(ended).1,
            progress: watch::channel(ProgressByOutput::new()).1,
            queueing: watch::channel(Queueing::Queued).1,
        }
    }

    /// Returns when it is queued, or is not.
    pub(crate) async fn queued(&mut self) -> Result<(), NotQueued> {
        let tried = self
            .queueing
            .wait_for(|now| !matches!(now, Queueing::Trying));
        match tried.await.map(|tried| tried.clone()) {
            Ok(Queueing::Queued) => Ok(()),
            Ok(Queueing::Refused(error)) => Err(NotQueued::Refused(error)),
            Ok(Queueing::Claimed(record)) => Err(NotQueued::Claimed(record)),
            // Its message may be stored all the same.
            Ok(Queueing::Trying) | Err(_) => Err(NotQueued::Refused(
                ApiError::new(ErrorCode::NotReady, "the gateway is stopping")
                    .of_unqueued(self.record.job),
            )),
        }
    }
}

impl Jobs {
    pub(crate) fn new(parts: JobsParts) -> Self {
        let JobsParts {
            bus,
            results,
            rooms,
            counters,
            result_ttl,
            job_timeout,
            tracker,
            stop,
        } = parts;
        Self {
            bus,
            rooms,
            counters,
            result_ttl,
            job_timeout,
            tracker,
            stop,
            results,
            slots: Arc::new(Semaphore::new(JOBS_OPEN_MAX)),
            open: Arc::default(),
        }
    }

    /// Places for the outputs of `order`, for a [`Start`].
    pub(crate) fn admit(&self, order: &Order) -> Result<Room, ApiError> {
        let record = &order.record;
        self.rooms
            .admit(outputs(record).into(), record.tenant.as_ref())
    }

    /// The job of `order`, followed here from now on if it was not yet. Does not wait: [`OpenJob::queued`] tells what
    /// comes of `start`.
    pub(crate) fn follow(&self, order: Order, start: Start) -> Result<OpenJob, ApiError> {
        let job = order.record.job;
        let mut open = self.lock();
        let place = match open.entry(job) {
            Entry::Occupied(followed) => return Ok(followed.get().clone()),
            Entry::Vacant(place) => place,
        };
        let outputs = outputs(&order.record);
        let full = |text: &str| self.rooms.refuse(outputs.into(), text);
        let slot = Arc::clone(&self.slots).try_acquire_owned();
        let slot = slot.map_err(|_| full("too many jobs are open at this gateway"))?;
        // Watched before it is published: its first result may come before the publish returns.
        let watch = match start {
            Start::New(_) => self.results.watch_new(job, outputs),
            Start::Keyed(..) | Start::Resumed => self.results.watch(job, outputs),
        };
        let watch = watch.map_err(|error| full(&error.to_string()))?;
        let (ended, ended_seen) = watch::channel(EndedByOutput::new());
        let (queueing, queueing_seen) = watch::channel(Queueing::Trying);
        let view = OpenJob {
            record: Arc::new(order.record.clone()),
            ended: ended_seen,
            progress: watch.progress(),
            queueing: queueing_seen,
        };
        place.insert(view.clone());
        let follower = Follower {
            // Made here, so that the job leaves the list however its task ends.
            listed: Listed {
                jobs: self.clone(),
                job,
            },
            order,
            start,
            watch,
            ended,
            queueing,
            slot,
        };
        let span = job_span(&follower.order);
        self.tracker.spawn(follower.run().instrument(span));
        Ok(view)
    }

    /// The view of `job`, if it is open here, queued or on its way.
    pub(crate) fn followed(&self, job: JobId) -> Option<OpenJob> {
        self.lock().get(&job).cloned()
    }

    /// The view of `job`, if it is queued and open here.
    pub(crate) fn open(&self, job: JobId) -> Option<OpenJob> {
        self.followed(job)
            .filter(|open| matches!(*open.queueing.borrow(), Queueing::Queued))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, OpenJob>> {
        // A panic between two map operations leaves a whole map.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A child of the request that brought it; it may outlive that one.
fn job_span(order: &Order) -> Span {
    let record = &order.record;
    let span = tracing::info_span!(span::JOB, { attribute::JOB_ID } = %record.job);
    let outputs = i64::from(outputs(record));
    let steps = i64::from(record.denoise.steps());
    spans::set(
        &span,
        attribute::GEN_AI_OPERATION_NAME,
        value::GENERATE_CONTENT,
    );
    spans::set(&span, attribute::GEN_AI_PROVIDER_NAME, value::FRESCO);
    spans::set(&span, attribute::GEN_AI_REQUEST_MODEL, MODEL);
    spans::set(&span, attribute::GEN_AI_OUTPUT_TYPE, value::IMAGE);
    spans::set(&span, attribute::GEN_AI_REQUEST_CHOICE_COUNT, outputs);
    let tenant = name_of(record.tenant.as_ref());
    spans::set(&span, attribute::TENANT, tenant.to_owned());
    spans::set(&span, attribute::CLASS, order.class().to_string());
    spans::set(&span, attribute::SIZE, record.size.to_string());
    spans::set(&span, attribute::STEPS, steps);
    span
}

fn outputs(record: &JobRecord) -> u8 {
    u8::try_from(record.outputs.len()).expect("a request has at most 10 outputs")
}

/// Takes the job off the list, however its task ends.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) jobs: Jobs,
    job: JobId,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.jobs.lock().remove(&self.job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    #[tokio::test]
    async fn a_job_whose_gateway_stops_before_it_knows_whether_it_is_queued_is_named() {
        let (trying, queueing) = watch::channel(Queueing::Trying);
        let mut open = OpenJob {
            queueing,
            ..OpenJob::of_stored(fixtures::record(1), EndedByOutput::new())
        };
        drop(trying);
        let Err(NotQueued::Refused(error)) = open.queued().await else {
            panic!("it is queued");
        };
        assert_eq!(error.error().code, ErrorCode::NotReady);
        assert_eq!(error.unqueued(), Some(open.record.job));
    }
}
