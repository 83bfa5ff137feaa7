//! The ledger against the broker: what must be true at the end, whatever happened. Pure.

use std::collections::{BTreeMap, BTreeSet};

use protocol::{ErrorCode, JobId, OutputIndex};

use super::{
    ledger::{Entry, Told},
    order::Order,
    stored::Stored,
};

/// Everything that is not as it must be, as sentences.
pub fn violations(entries: &[Entry], stored: &Stored) -> Vec<String> {
    let mut found = Vec::new();
    let mut orders: BTreeMap<JobId, &Order> = BTreeMap::new();
    for entry in entries {
        found.extend(entry.complaints.iter().cloned());
        let number = entry.order.number;
        let Some(job) = entry.job() else {
            found.push(format!("request {number}: its client has no answer"));
            continue;
        };
        if !stored.jobs.contains_key(&job) {
            found.push(format!("request {number}: job {job} has no record: lost"));
        }
        if let Some(other) = orders.insert(job, &entry.order) {
            let other = other.number;
            found.push(format!("requests {number} and {other} are one job {job}"));
        }
        for (again, told) in &entry.answers {
            if *again != job {
                found.push(format!(
                    "request {number}: job {job} at first, then {again}"
                ));
            }
            let told = told_wrongly(&entry.order, job, told, stored);
            found.extend(told.map(|what| format!("request {number}, job {job}: {what}")));
        }
    }
    let jobs: BTreeSet<JobId> = stored.jobs.keys().copied().collect();
    let results: BTreeSet<JobId> = stored.results.keys().map(|output| output.job).collect();
    for job in jobs.union(&results) {
        match orders.get(job) {
            Some(order) => found.extend(ended_wrongly(order, *job, stored)),
            None => found.push(format!(
                "job {job} is nobody's: executed twice, or refused and run"
            )),
        }
    }
    let (left, queues) = (stored.left, stored.queues);
    let counts = [queues.ar, queues.denoise].map(|queue| queue.queued + queue.held);
    if left > 0 || counts != [0, 0] {
        found.push(format!(
            "the queues are not empty: {left} messages, {queues:?}"
        ));
    }
    found
}

/// What is wrong with the stored outputs of a job.
fn ended_wrongly(order: &Order, job: JobId, stored: &Stored) -> Vec<String> {
    let mut found = Vec::new();
    let mut wrong = |what: String| found.push(format!("request {}: {what}", order.number));
    for index in OutputIndex::first(order.n) {
        let output = job.output(index);
        let Some(result) = stored.results.get(&output) else {
            wrong(format!("output {output} has no end"));
            continue;
        };
        if result.messages != 1 {
            wrong(format!("output {output} has {} results", result.messages));
        }
        let end = result.outcome.as_ref().err().copied();
        if !order.may_end(end) {
            wrong(format!("output {output} may not end with {end:?}"));
        }
        if let Ok(picture) = &result.outcome
            && *picture != order.picture(index.get())
        {
            wrong(format!("output {output} is another picture"));
        }
        if end == Some(ErrorCode::AttemptsExhausted) {
            match stored.dead.get(&output) {
                None => wrong(format!("output {output} is given up without a dead letter")),
                Some(true) if !order.is_poison() => {
                    wrong(format!(
                        "output {output} is no poison, and an engine failed at it"
                    ));
                }
                Some(_) => {}
            }
        }
    }
    let results = stored.results.range(job.output(first())..);
    let of_job = results.take_while(|(output, _)| output.job == job).count();
    if of_job > usize::from(order.n) {
        wrong(format!(
            "job {job} has {of_job} results for {} outputs",
            order.n
        ));
    }
    found
}

fn first() -> OutputIndex {
    OutputIndex::new(0).expect("0 is an index")
}

/// What is wrong with an answer, by what is stored.
fn told_wrongly(order: &Order, job: JobId, told: &Told, stored: &Stored) -> Option<String> {
    let outputs = OutputIndex::first(order.n).map(|index| stored.results.get(&job.output(index)));
    let outcomes: Vec<_> = outputs.flatten().map(|result| &result.outcome).collect();
    let ends: Vec<_> = outcomes
        .iter()
        .map(|end| end.as_ref().err().copied())
        .collect();
    match told {
        Told::Pictures(pictures) => {
            let stored: Vec<_> = outcomes
                .iter()
                .filter_map(|end| end.as_ref().ok())
                .collect();
            let same = stored.len() == usize::from(order.n) && pictures.iter().eq(stored);
            (!same).then(|| "its client was given other pictures than are stored".to_owned())
        }
        Told::Error(code) => (!ends.contains(&Some(*code)))
            .then(|| format!("its client was told {code}, stored is {ends:?}")),
        Told::Ends(told) => {
            (*told != ends).then(|| format!("its client was told {told:?}, stored is {ends:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use protocol::JobId;

    use super::*;
    use crate::chaos::{
        order::{Kinds, Manner, Mix, order},
        stored::StoredResult,
    };

    const JOB: JobId = JobId::from_u128(7);

    fn entry() -> Entry {
        let mix = Mix {
            seed: 1,
            polled_percent: 0,
            kinds: Kinds::All,
        };
        let order = Order {
            prompt: "a red fox".to_owned(),
            n: 2,
            manner: Manner::WaitForBytes,
            timeout: None,
            ..order(mix, 0)
        };
        let pictures = Told::Pictures(vec![order.picture(0), order.picture(1)]);
        Entry {
            order,
            answers: vec![(JOB, pictures)],
            tries: 1,
            took: Duration::ZERO,
            complaints: Vec::new(),
        }
    }

    fn stored(entry: &Entry) -> Stored {
        let result = |index: OutputIndex| StoredResult {
            messages: 1,
            outcome: Ok(entry.order.picture(index.get())),
            at_ms: 0,
        };
        let outputs = OutputIndex::first(2);
        Stored {
            jobs: BTreeMap::from([(JOB, 0)]),
            results: outputs
                .map(|index| (JOB.output(index), result(index)))
                .collect(),
            ..Stored::default()
        }
    }

    fn count(change: impl FnOnce(&mut Entry, &mut Stored)) -> usize {
        let mut entry = entry();
        let mut stored = stored(&entry);
        change(&mut entry, &mut stored);
        violations(&[entry], &stored).len()
    }

    #[test]
    fn a_run_in_which_all_is_well_has_no_violation() {
        assert_eq!(count(|_, _| {}), 0);
    }

    #[test]
    fn every_kind_of_wrong_is_found() {
        let last = JOB.output(OutputIndex::new(1).expect("an index"));
        let with = |outcome| StoredResult {
            messages: 1,
            outcome,
            at_ms: 0,
        };
        assert!(count(|entry, _| entry.answers.clear()) > 0, "no answer");
        assert!(count(|_, stored| stored.jobs.clear()) > 0, "lost");
        assert!(
            count(|_, stored| drop(stored.results.remove(&last))) > 0,
            "no end"
        );
        assert!(count(|_, stored| stored.left = 1) > 0, "not empty");
        let twice = |_: &mut Entry, stored: &mut Stored| {
            stored.results.get_mut(&last).expect("there").messages = 2;
        };
        assert!(count(twice) > 0, "two results");
        let other = with(Ok(vec![1]));
        assert!(
            count(|_, stored| drop(stored.results.insert(last, other))) > 0,
            "another picture"
        );
        let late = with(Err(ErrorCode::DeadlineExceeded));
        assert!(
            count(|_, stored| drop(stored.results.insert(last, late))) > 0,
            "an end it cannot have"
        );
        let strange = JobId::from_u128(8);
        assert!(
            count(|_, stored| stored.jobs.extend([(strange, 0)])) > 0,
            "nobody's job"
        );
        let told = (JOB, Told::Error(ErrorCode::Cancelled));
        assert!(
            count(|entry, _| entry.answers.push(told)) > 0,
            "told otherwise the second time"
        );
        let elsewhere = (strange, entry().answers[0].1.clone());
        assert!(
            count(|entry, _| entry.answers.push(elsewhere)) > 0,
            "another job the second time"
        );
    }

    #[test]
    fn an_output_may_be_given_up_only_for_lost_workers() {
        let last = JOB.output(OutputIndex::new(1).expect("an index"));
        let given_up = |engine_failed: Option<bool>| {
            count(|entry, stored| {
                entry.answers = vec![(JOB, Told::Error(ErrorCode::AttemptsExhausted))];
                let result = stored.results.get_mut(&last).expect("there");
                result.outcome = Err(ErrorCode::AttemptsExhausted);
                stored
                    .dead
                    .extend(engine_failed.map(|failed| (last, failed)));
            })
        };
        assert_eq!(given_up(Some(false)), 0);
        assert_eq!(given_up(Some(true)), 1);
        assert_eq!(given_up(None), 1);
    }
}
