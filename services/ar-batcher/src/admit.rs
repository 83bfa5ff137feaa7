//! A message becomes a held request, or ends here.

use std::collections::{BTreeMap, BTreeSet};

use batching::{Others, Start, may_start};
use futures::future::{join_all, try_join_all};
use messaging::{BusError, Delivery, Lease};
use protocol::{
    ArJob, ErrorCode, JobError, JobId, LifeEvent, OutputIndex, OutputLife, OutputRequest,
    OutputState, PriorityClass, Subject, UnixMillis, WorkStage, WorkerId, decode,
    topology::in_time,
};
use service::{clock::unix_millis, exit::chain};

use crate::{
    bench::Bench,
    request::{BatchTimes, Held, OpenOutput},
    settle::{self, REST},
};

/// The request to hold, or `None` when the message needed no engine and is settled.
pub(crate) async fn admit(bench: &Bench<'_>, delivery: Delivery) -> Option<(JobId, Held)> {
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
    let job = match read(id, &payload) {
        Ok(job) => job,
        Err(error) => return refuse_unreadable(bench, id, error, lease).await,
    };
    if !in_time(job.deadline_at, unix_millis()) {
        end_all(
            bench,
            id,
            &job.outputs,
            job.accepted_at,
            &settle::too_late(),
        )
        .await;
        lease.ack().await;
        return None;
    }
    hold(bench, job, class, lease).await
}

fn read(id: JobId, payload: &[u8]) -> Result<ArJob, JobError> {
    let job = decode::<ArJob>(payload)
        .map_err(|error| JobError::new(ErrorCode::MessageInvalid, &error.to_string()))?;
    if job.job == id {
        Ok(job)
    } else {
        Err(JobError::new(
            ErrorCode::MessageInvalid,
            "AR message names another job",
        ))
    }
}

/// What becomes of one output of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Run {
        alone: bool,
    },
    /// It has a result, or its denoise message is stored.
    Skip,
    PassOn,
    GiveUp,
}

fn judge(ended: bool, life: &OutputLife, rule: &Rule<'_>) -> Verdict {
    let fanned_out = matches!(
        life.state,
        OutputState::DenoiseWaiting | OutputState::DenoiseRunning
    );
    if ended || fanned_out {
        return Verdict::Skip;
    }
    let stage = WorkStage::Prior;
    match may_start(life, stage, rule.worker, rule.others, rule.attempts_max) {
        Start::Go => Verdict::Run {
            alone: life.counted(stage).next().is_some(),
        },
        Start::PassOn => Verdict::PassOn,
        Start::GiveUp => Verdict::GiveUp,
    }
}

/// Who asks, and by which limit.
struct Rule<'a> {
    worker: &'a WorkerId,
    others: Others,
    attempts_max: u32,
}

/// Holds the outputs that have no answer yet: a redelivered request may have been worked on before.
async fn hold(
    bench: &Bench<'_>,
    job: ArJob,
    class: PriorityClass,
    lease: Lease,
) -> Option<(JobId, Held)> {
    let id = job.job;
    // Watched before it is looked up: an end in between is not missed.
    let mut open: BTreeMap<OutputIndex, OpenOutput> = job
        .outputs
        .iter()
        .map(|output| {
            let watch = bench.member.ends.watch(id.output(output.index));
            let (suspect, parked) = (false, false);
            (
                output.index,
                OpenOutput {
                    watch,
                    suspect,
                    parked,
                },
            )
        })
        .collect();
    let lives = match look(bench, &job).await {
        Ok(lives) => lives,
        Err(error) => {
            // A bus that does not answer says nothing about the outputs: the request comes again.
            tracing::warn!(job = %id, error = %chain(&error), "message broker does not answer, giving the request back");
            lease.nak(Some(REST));
            return None;
        }
    };
    let mut dead = Vec::new();
    for (life, verdict) in lives {
        let index = life.output.index;
        match verdict {
            Verdict::Run { alone } => {
                if let Some(open) = open.get_mut(&index) {
                    open.suspect = alone;
                }
            }
            Verdict::PassOn => {
                if let Some(open) = open.get_mut(&index) {
                    open.parked = true;
                }
            }
            Verdict::Skip => drop(open.remove(&index)),
            Verdict::GiveUp => dead.push(life),
        }
    }
    let mut held = Held::new(job, open, class, lease, unix_millis());
    for life in dead {
        bench.give_up(&mut held, life).await;
    }
    enter(bench, &mut held).await;
    fan_out_chosen(bench, &mut held).await;
    bench.keep(held).await.map(|held| (id, held))
}

/// The life of each output and what follows from it.
async fn look(bench: &Bench<'_>, job: &ArJob) -> Result<Vec<(OutputLife, Verdict)>, BusError> {
    let bus = &bench.member.bus;
    let life = async |output: &OutputRequest| {
        let output = job.job.output(output.index);
        let life = bus.life(output).await?;
        Ok(life.unwrap_or_else(|| OutputLife::queued(output, job.accepted_at)))
    };
    let (ended, lives): (BTreeSet<OutputIndex>, Vec<OutputLife>) = tokio::try_join!(
        bus.ended_outputs(job.job),
        try_join_all(job.outputs.iter().map(life))
    )?;
    let rule = Rule {
        worker: &bench.member.id,
        others: bench.others_if_tried(&lives).await?,
        attempts_max: bench.attempts_max,
    };
    let judged = lives.into_iter().map(|life| {
        let verdict = judge(ended.contains(&life.output.index), &life, &rule);
        (life, verdict)
    });
    Ok(judged.collect())
}

/// Writes down that the outputs are held here. One that somebody fanned out in between is none of ours.
async fn enter(bench: &Bench<'_>, held: &mut Held) {
    let outputs = held.open();
    let entered = join_all(
        outputs
            .iter()
            .map(|output| bench.advance(*output, LifeEvent::Admitted)),
    );
    for (output, entered) in outputs.iter().zip(entered.await) {
        match entered {
            Ok(true) => {}
            Ok(false) => held.settle(*output),
            // The start of its batch is written down again before it runs.
            Err(error) => tracing::debug!(%output, %error, "life is not moved on"),
        }
    }
}

/// Passes on what needs no engine, because the client chose its prior tokens.
async fn fan_out_chosen(bench: &Bench<'_>, held: &mut Held) {
    let Some(prior) = held.chosen_prior() else {
        return;
    };
    let now = unix_millis();
    let times = BatchTimes {
        started_at: now,
        finished_at: now,
    };
    for output in held.open() {
        if held.needs(output) {
            settle::fan_out(bench, held, output, prior.clone(), times).await;
        }
        held.settle(output);
    }
}

/// Ends a request whose message cannot be read: the record written beside it says which outputs it has.
async fn refuse_unreadable<T>(
    bench: &Bench<'_>,
    id: JobId,
    error: JobError,
    lease: Lease,
) -> Option<T> {
    tracing::error!(job = %id, %error, "AR message cannot be read");
    match bench.member.bus.job(id).await {
        Ok(Some(record)) => {
            end_all(bench, id, &record.outputs, record.accepted_at, &error).await;
            lease.term("unreadable");
        }
        Ok(None) => lease.term("unreadable, and no record of it"),
        // Nobody can be answered now: it comes again.
        Err(_) => lease.nak(Some(REST)),
    }
    None
}

/// Ends each of a request's outputs with `error`.
async fn end_all(
    bench: &Bench<'_>,
    job: JobId,
    outputs: &[OutputRequest],
    accepted_at: UnixMillis,
    error: &JobError,
) {
    for OutputRequest { index, seed } in outputs {
        let result = settle::failure(job.output(*index), Some(*seed), accepted_at, error.clone());
        bench.answer(&result).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_outputs_without_a_denoise_message_are_run() {
        use OutputState::{ArRunning, ArWaiting, DenoiseRunning, DenoiseWaiting, Queued};
        let worker = "a".parse().expect("allowed characters");
        let rule = Rule {
            worker: &worker,
            others: Others::Some,
            attempts_max: 3,
        };
        let run = Verdict::Run { alone: false };
        let table = [
            (Queued, false, run),
            (ArWaiting, false, run),
            (ArRunning, false, run),
            (DenoiseWaiting, false, Verdict::Skip),
            (DenoiseRunning, false, Verdict::Skip),
            (Queued, true, Verdict::Skip),
            (ArRunning, true, Verdict::Skip),
        ];
        for (state, ended, expected) in table {
            let mut life = OutputLife::queued(JobId::from_u128(1).output(OutputIndex::FIRST), 0);
            life.state = state;
            assert_eq!(judge(ended, &life, &rule), expected, "{state:?} {ended}");
        }
    }

    #[test]
    fn an_output_whose_batcher_vanished_runs_alone() {
        let worker = "a".parse().expect("allowed characters");
        let rule = Rule {
            worker: &worker,
            others: Others::Some,
            attempts_max: 2,
        };
        let mut life = OutputLife::queued(JobId::from_u128(1).output(OutputIndex::FIRST), 0);
        for (batcher, expected) in [("b", Verdict::Run { alone: true }), ("c", Verdict::GiveUp)] {
            let started = LifeEvent::Started {
                stage: WorkStage::Prior,
                worker: batcher.parse().expect("allowed characters"),
            };
            life = life.apply(started, 1).expect("follows");
            assert_eq!(judge(false, &life, &rule), expected, "after {batcher}");
        }
    }
}
