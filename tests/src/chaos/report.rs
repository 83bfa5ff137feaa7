//! The figures of a run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    time::Duration,
};

use super::{
    crew::Tally,
    ledger::{Entry, Told},
    pauses,
    stored::Stored,
};

/// What the logs of the run tell, which counters of killed processes cannot.
#[derive(Debug, Clone, Copy, Default)]
pub struct Logged {
    /// Results that were second and dropped.
    pub suppressed: usize,
    /// Messages given back for dead workers.
    pub given_back_for_dead: usize,
}

/// All about a run.
#[derive(Debug)]
pub struct Report {
    /// Runs it again.
    pub seed: u64,
    /// From the first request to the last answer.
    pub took: Duration,
    /// What clients were told.
    pub entries: Vec<Entry>,
    /// What is stored.
    pub stored: Stored,
    /// What was done to whom.
    pub tally: Tally,
    /// From the logs.
    pub logged: Logged,
    /// What must not be.
    pub violations: Vec<String>,
    /// The logs, kept when something is wrong.
    pub logs: Option<PathBuf>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "chaos, seed {}", self.seed)?;
        self.strikes(f)?;
        self.ends(f)?;
        self.speed(f)?;
        self.pauses(f)?;
        for violation in self.violations.iter().take(VIOLATIONS_SHOWN_MAX) {
            writeln!(f, "  VIOLATION: {violation}")?;
        }
        if let Some(logs) = &self.logs {
            writeln!(f, "  logs kept in {}", logs.display())?;
        }
        let count = self.violations.len();
        write!(f, "  {count} violations, seed {}", self.seed)
    }
}

const VIOLATIONS_SHOWN_MAX: usize = 40;

impl Report {
    fn strikes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut struck = 0;
        writeln!(
            f,
            "  {:<12} {:>8} {:>8} {:>8}",
            "struck", "kill -9", "freeze", "SIGTERM"
        )?;
        let targets: BTreeSet<_> = self
            .tally
            .strikes
            .keys()
            .map(|(target, _)| target)
            .collect();
        for target in targets {
            let of = |kind| {
                let count = self.tally.strikes.get(&(target.clone(), kind));
                count.copied().unwrap_or_default()
            };
            let [kill, freeze, end] = ["kill -9", "freeze", "SIGTERM"].map(of);
            writeln!(f, "  {target:<12} {kill:>8} {freeze:>8} {end:>8}")?;
            if target != "broker" {
                struck += kill + freeze;
            }
        }
        writeln!(f, "  kills and freezes of processes: {struck}")?;
        for (crash, count) in &self.tally.crashes {
            writeln!(f, "  ended by itself: {crash}: {count}")?;
        }
        Ok(())
    }

    fn ends(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (stored, entries) = (&self.stored, &self.entries);
        let mut ends: BTreeMap<String, usize> = BTreeMap::new();
        for result in stored.results.values() {
            let end = result.outcome.as_ref().err();
            let end = end.map_or("picture".to_owned(), |code| code.to_string());
            *ends.entry(end).or_default() += 1;
        }
        let outputs: usize = entries.iter().map(|entry| usize::from(entry.order.n)).sum();
        let answered = entries.iter().filter(|entry| entry.job().is_some()).count();
        writeln!(
            f,
            "  requests {}, answered {answered}, without an answer {}; asked again after their end {}",
            entries.len(),
            entries.len() - answered,
            entries
                .iter()
                .filter(|entry| entry.answers.len() > 1)
                .count(),
        )?;
        writeln!(
            f,
            "  accepted {} jobs of {outputs} outputs, ended {} outputs, left in the queues {}",
            stored.jobs.len(),
            stored.results.len(),
            stored.left,
        )?;
        let doubles = stored
            .results
            .values()
            .filter(|result| result.messages != 1);
        writeln!(
            f,
            "  outputs with more than one result: {}",
            doubles.count()
        )?;
        for (end, count) in ends {
            writeln!(f, "    {end:<22} {count:>6}")?;
        }
        let errors = entries
            .iter()
            .filter(|entry| matches!(entry.answers.first(), Some((_, Told::Error(_)))));
        writeln!(
            f,
            "  waiting clients told an error {}; dead letters {}, of prompts without poison {}",
            errors.count(),
            stored.dead.len(),
            self.unlucky(),
        )?;
        writeln!(
            f,
            "  results suppressed by the fence {}; messages given back for the dead {}",
            self.logged.suppressed, self.logged.given_back_for_dead
        )
    }

    /// Outputs that were given up because their workers were killed again and again.
    fn unlucky(&self) -> usize {
        let innocent = self.entries.iter().filter(|entry| !entry.order.is_poison());
        let jobs: BTreeSet<_> = innocent.filter_map(Entry::job).collect();
        let dead = self.stored.dead.keys();
        dead.filter(|output| jobs.contains(&output.job)).count()
    }

    fn speed(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut took: Vec<Duration> = self.entries.iter().map(|entry| entry.took).collect();
        took.sort();
        let at = |percent: usize| {
            let place = (took.len().saturating_sub(1)) * percent / 100;
            took.get(place).copied().unwrap_or_default().as_secs_f64()
        };
        let seconds = self.took.as_secs_f64();
        let tries: usize = self.entries.iter().map(|entry| entry.tries).sum();
        writeln!(
            f,
            "  {seconds:.0} s, {:.1} requests/s, {tries} tries; answers after p50 {:.2} s, p90 {:.2} s, p99 {:.2} s, max {:.2} s",
            self.entries.len() as f64 / seconds,
            at(50),
            at(90),
            at(99),
            at(100),
        )
    }

    fn pauses(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut accepted: Vec<i128> = self.stored.jobs.values().copied().collect();
        accepted.sort_unstable();
        let mut finished: Vec<i128> = self
            .stored
            .results
            .values()
            .map(|result| result.at_ms)
            .collect();
        finished.sort_unstable();
        for event in &self.tally.broker {
            let longest = |stamps: &[i128]| pauses::longest(stamps, event.at_ms).as_secs_f64();
            let (accepted, finished) = (longest(&accepted), longest(&finished));
            writeln!(
                f,
                "  {:<44} nothing accepted for {accepted:>5.2} s, nothing finished for {finished:>5.2} s",
                event.what,
            )?;
        }
        Ok(())
    }
}
