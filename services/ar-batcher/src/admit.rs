//! A message becomes a held request, or ends here. Run in a task: the driver waits for no broker.

use std::{collections::BTreeMap, sync::Arc};

use batching::{Others, Redelivery, Start, may_start};
use futures::future::try_join_all;
use messaging::{BusError, Delivery, EndWatch, KnownLife, Lease, Publisher};
use protocol::{
    ArJob, ErrorCode, JobError, JobId, OutputId, OutputIndex, OutputLife, OutputRequest,
    OutputState, PriorityClass, UnixMillis, WorkStage, WorkerId, decode, topology::in_time,
};
use service::{clock::unix_millis, exit::chain};

use crate::{
    bench::Bench,
    request::{Doing, Held, OpenOutput, Request, Rest},
    settle::{self, REST},
};

/// The request to hold, or `None` when the message needed no engine and is settled.
pub(crate) async fn admit(
    bench: &Bench,
    class: PriorityClass,
    id: JobId,
    delivery: Delivery,
) -> Option<Held> {
    let publisher = delivery.publisher();
    let Delivery {
        payload,
        tenant,
        delivered,
        lease,
        ..
    } = delivery;
    let job = match read(id, &payload) {
        Ok(job) => job,
        Err(error) => return refuse_unreadable(bench, id, error, lease).await,
    };
    if !in_time(job.deadline_at, unix_millis()) {
        let late = settle::too_late();
        end_all(bench, id, &job.outputs, job.accepted_at, &late).await;
        lease.ack().await;
        return None;
    }
    let asked = if delivered == 1 {
        Asked::First
    } else {
        Asked::Again
    };
    let request = Arc::new(Request::new(job, class, tenant));
    let message = Message {
        asked,
        publisher,
        lease,
    };
    let held = hold(bench, request, message).await?;
    close_unless_kept(held).await
}

/// Lets the message go when nothing of it is left here.
async fn close_unless_kept(held: Held) -> Option<Held> {
    let rest = held.rest();
    if rest == Rest::Keep {
        return Some(held);
    }
    if let Some(lease) = held.close(rest) {
        lease.ack().await;
    }
    None
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

/// Whether a message has been in somebody's hands before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    First,
    Again,
}

/// A message, without what it says.
struct Message {
    asked: Asked,
    publisher: Publisher,
    lease: Lease,
}

/// What becomes of one output of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Run,
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
        Start::Go => Verdict::Run,
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
async fn hold(bench: &Bench, request: Arc<Request>, message: Message) -> Option<Held> {
    let Message {
        asked,
        publisher,
        lease,
    } = message;
    // Watched before it is looked up: an end in between is not missed.
    let mut watches: Watches = request
        .outputs()
        .map(|output| (output.index, bench.ends.watch(output)))
        .collect();
    let looked = match asked {
        Asked::First => Ok(untouched(&request, &watches)),
        Asked::Again => look(bench, &request).await,
    };
    let lives = match looked {
        Ok(lives) => lives,
        Err(error) => {
            // A bus that does not answer says nothing about the outputs: the request comes again.
            tracing::warn!(job = %request.id(), error = %chain(&error), "message broker does not answer, giving the request back");
            lease.nak(Some(REST));
            return None;
        }
    };
    if asked == Asked::Again
        && let Some(why) = why_again(&lives)
    {
        bench.counters.redelivered(why);
    }
    let (mut open, mut dead) = (BTreeMap::new(), Vec::new());
    for Looked {
        known,
        life,
        verdict,
    } in lives
    {
        let index = known.output().index;
        if matches!(verdict, Verdict::Run | Verdict::GiveUp) {
            let (stage, now) = (WorkStage::Prior, unix_millis());
            publisher.tell_lost(&life, stage, &bench.member.id, now);
        }
        let doing = match verdict {
            Verdict::Run => Doing::Waiting { told: false },
            Verdict::PassOn => Doing::Parked,
            Verdict::Skip => continue,
            Verdict::GiveUp => {
                dead.push(life);
                continue;
            }
        };
        if let Some(watch) = watches.remove(&index) {
            let suspect = bench.is_suspect(&life);
            open.insert(index, OpenOutput::new(known, watch, suspect, doing));
        }
    }
    for life in dead {
        bench.give_up(&request, life).await;
    }
    Some(Held::new(request, open, lease))
}

/// Of the outputs of a request.
type Watches = BTreeMap<OutputIndex, EndWatch>;

/// What is known of an output.
struct Looked {
    known: KnownLife,
    life: OutputLife,
    verdict: Verdict,
}

/// Why a message comes again, by the worst that became of an output of it that is left to do; where none is, only its ack
/// was lost.
fn why_again(looked: &[Looked]) -> Option<Redelivery> {
    let left = looked.iter().filter(|one| one.verdict != Verdict::Skip);
    let why = |one: &Looked| Redelivery::of(&one.life, WorkStage::Prior);
    let worst = left.map(why).min();
    worst.or_else(|| looked.iter().map(why).min())
}

/// The outputs of a message that comes for the first time. The broker is not asked: an end of the last seconds is
/// known to the watches, a start on one that was worked on all the same is refused, and whatever else there is costs a
/// row, for the denoiser finds its result.
fn untouched(request: &Request, watches: &Watches) -> Vec<Looked> {
    let looked = |output: OutputId| {
        let known = KnownLife::untouched(output);
        let watch = watches.get(&output.index);
        let ended = watch.is_some_and(EndWatch::has_ended);
        Looked {
            life: known.life(request.accepted_at()),
            verdict: if ended { Verdict::Skip } else { Verdict::Run },
            known,
        }
    };
    request.outputs().map(looked).collect()
}

/// The life of each output and what follows from it. An end that the copy which answers has not heard of yet is told by
/// its watch.
async fn look(bench: &Bench, request: &Request) -> Result<Vec<Looked>, BusError> {
    let bus = &bench.member.bus;
    let output = async |output| tokio::try_join!(bus.has_result(output), bus.known_life(output));
    let found = try_join_all(request.outputs().map(output)).await?;
    let accepted_at = request.accepted_at();
    let lives: Vec<OutputLife> = found
        .iter()
        .map(|(_, known)| known.life(accepted_at))
        .collect();
    let rule = Rule {
        worker: &bench.member.id,
        others: bench.others_if_tried(&lives).await?,
        attempts_max: bench.attempts_max,
    };
    let looked = found.into_iter().zip(lives);
    let looked = looked.map(|((ended, known), life)| Looked {
        verdict: judge(ended, &life, &rule),
        known,
        life,
    });
    Ok(looked.collect())
}

/// Ends a request whose message cannot be read: the record written beside it says which outputs it has.
async fn refuse_unreadable<T>(
    bench: &Bench,
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
    bench: &Bench,
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
        let run = Verdict::Run;
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
    fn a_message_comes_again_for_one_reason_whatever_number_of_outputs_it_has() {
        use protocol::LifeEvent::{GivenBack, PriorStored, Started};
        let worker = || "a".parse().expect("allowed characters");
        let stage = WorkStage::Prior;
        let started = || Started {
            stage,
            worker: worker(),
        };
        let looked = |index, events: Vec<protocol::LifeEvent>, verdict| {
            let output = JobId::from_u128(1).output(OutputIndex::new(index).expect("small"));
            let mut life = OutputLife::queued(output, 0);
            for event in events {
                life = life.apply(event, 1).expect("follows");
            }
            Looked {
                known: KnownLife::untouched(output),
                life,
                verdict,
            }
        };
        let given_back = |index| {
            let worker = worker();
            looked(
                index,
                vec![started(), GivenBack { stage, worker }],
                Verdict::Run,
            )
        };
        let fanned_out = |index| looked(index, vec![started(), PriorStored], Verdict::Skip);
        let vanished = |index| looked(index, vec![started()], Verdict::Run);
        for (looked, wanted) in [
            (vec![], None),
            (
                vec![given_back(0), given_back(1)],
                Some(Redelivery::GivenBack),
            ),
            (
                vec![fanned_out(0), given_back(1)],
                Some(Redelivery::GivenBack),
            ),
            (vec![given_back(0), vanished(1)], Some(Redelivery::Lost)),
            (vec![fanned_out(0), fanned_out(1)], Some(Redelivery::Lost)),
        ] {
            assert_eq!(why_again(&looked), wanted);
        }
    }

    #[test]
    fn an_output_whose_batchers_vanished_is_given_up_in_the_end() {
        let worker = "a".parse().expect("allowed characters");
        let rule = Rule {
            worker: &worker,
            others: Others::Some,
            attempts_max: 2,
        };
        let mut life = OutputLife::queued(JobId::from_u128(1).output(OutputIndex::FIRST), 0);
        for (batcher, expected) in [("b", Verdict::Run), ("c", Verdict::GiveUp)] {
            let started = protocol::LifeEvent::Started {
                stage: WorkStage::Prior,
                worker: batcher.parse().expect("allowed characters"),
            };
            life = life.apply(started, 1).expect("follows");
            assert_eq!(judge(false, &life, &rule), expected, "after {batcher}");
        }
    }
}
