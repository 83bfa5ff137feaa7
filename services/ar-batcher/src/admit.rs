//! A message becomes a held request, or ends here.

use messaging::{Bus, Delivery, Lease};
use protocol::{
    ArJob, ErrorCode, JobError, JobId, OutputIndex, OutputRequest, PriorityClass, Subject,
    UnixMillis, decode, topology::in_time,
};
use service::clock::unix_millis;

use crate::{request::Held, settle};

/// The request to hold, or `None` when the message needed no engine and is settled.
pub(crate) async fn admit(bus: &Bus, delivery: Delivery) -> Option<(JobId, Held)> {
    let Delivery {
        subject,
        payload,
        lease,
        ..
    } = delivery;
    let Subject::Ar(class, id) = subject else {
        tracing::error!(%subject, "message under a subject of another queue");
        lease.term("not an AR subject");
        return None;
    };
    let job = match decode::<ArJob>(&payload) {
        Ok(job) if job.job == id => job,
        Ok(_) => {
            let error = JobError::new(ErrorCode::MessageInvalid, "AR message names another job");
            return refuse_unreadable(bus, id, error, lease).await;
        }
        Err(error) => {
            let error = JobError::new(ErrorCode::MessageInvalid, &error.to_string());
            return refuse_unreadable(bus, id, error, lease).await;
        }
    };
    if !in_time(job.deadline_at, unix_millis()) {
        let error = JobError::new(
            ErrorCode::DeadlineExceeded,
            "the deadline passed before the AR stage was free",
        );
        end_all(bus, id, &job.outputs, job.accepted_at, &error).await;
        lease.ack().await;
        return None;
    }
    hold(bus, job, class, lease).await
}

/// Holds the outputs that have no answer yet: a redelivered request may have been worked on before.
async fn hold(bus: &Bus, job: ArJob, class: PriorityClass, lease: Lease) -> Option<(JobId, Held)> {
    let mut open: Vec<OutputIndex> = Vec::with_capacity(job.outputs.len());
    for output in &job.outputs {
        // A bus that does not answer says nothing about the output; the fence decides later.
        if !bus
            .has_result(job.job.output(output.index))
            .await
            .unwrap_or(false)
        {
            open.push(output.index);
        }
    }
    if open.is_empty() {
        tracing::info!(job = %job.job, "already answered, acking");
        lease.ack().await;
        return None;
    }
    Some((job.job, Held::new(job, open, class, lease)))
}

/// Ends a request whose message cannot be read: the record written beside it says which outputs it has.
async fn refuse_unreadable<T>(bus: &Bus, id: JobId, error: JobError, lease: Lease) -> Option<T> {
    tracing::error!(job = %id, %error, "AR message cannot be read");
    match bus.job(id).await {
        Ok(Some(record)) => {
            end_all(bus, id, &record.outputs, record.accepted_at, &error).await;
            lease.term("unreadable");
        }
        Ok(None) => lease.term("unreadable, and no record of it"),
        // Nobody can be answered now: it comes again.
        Err(_) => lease.nak(Some(settle::STORE_PAUSE)),
    }
    None
}

/// Ends each of a request's outputs with `error`.
async fn end_all(
    bus: &Bus,
    job: JobId,
    outputs: &[OutputRequest],
    accepted_at: UnixMillis,
    error: &JobError,
) {
    for OutputRequest { index, seed } in outputs {
        let result = settle::failure(job.output(*index), Some(*seed), accepted_at, error.clone());
        settle::answer(bus, &result).await;
    }
}
