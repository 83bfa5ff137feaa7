//! What of a caption is in its picture.

use std::{collections::BTreeMap, fmt};

use super::{
    captions::{Caption, Kind, Thing},
    palette::Form,
    read::{Seen, SeenThing},
};

/// One picture's marks. Shares are of the things asked for: 0, 0.5 or 1.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Marks {
    /// Its colour.
    pub background: f64,
    /// Of things.
    pub colour: f64,
    /// The shape, or which letter.
    pub form: f64,
    /// Small, medium or big; letters have one size, which counts as right when the letter is.
    pub size: f64,
    /// Row and column.
    pub place: f64,
    /// Everything, and nothing besides.
    pub whole: f64,
}

/// Compares what was asked for with what is there. Of more things than were asked for the largest count.
pub fn mark(caption: &Caption, seen: &Seen) -> Marks {
    let there: Vec<_> = (0..caption.things.len())
        .map(|at| seen.things.get(at))
        .collect();
    // Which of two is which: as fits better.
    let swapped: Vec<_> = there.iter().rev().copied().collect();
    let [straight, swapped] = [there, swapped].map(|there| mark_things(&caption.things, &there));
    let mut marks = if swapped.sum() > straight.sum() {
        swapped
    } else {
        straight
    };
    marks.background = share(usize::from(seen.background == caption.background), 1);
    let all = marks.sum() + marks.background >= 5.0;
    marks.whole = share(
        usize::from(all && seen.things.len() == caption.things.len()),
        1,
    );
    marks
}

fn mark_things(asked: &[Thing], there: &[Option<&SeenThing>]) -> Marks {
    let right = |is_right: fn(&Thing, &SeenThing) -> bool| {
        let pairs = asked.iter().zip(there);
        let rights = pairs.filter(|(asked, seen)| seen.is_some_and(|seen| is_right(asked, seen)));
        share(rights.count(), asked.len())
    };
    Marks {
        colour: right(|asked, seen| asked.colour == seen.colour),
        form: right(|asked, seen| is_same_form(&asked.form, &seen.form)),
        size: right(|asked, seen| is_same_size(&asked.form, &seen.form)),
        place: right(|asked, seen| (asked.row, asked.column) == (seen.row, seen.column)),
        ..Marks::default()
    }
}

fn is_same_form(asked: &Form, seen: &Form) -> bool {
    match (asked, seen) {
        (Form::Object { shape: a, .. }, Form::Object { shape: b, .. }) => a == b,
        (Form::Letter { letter: a }, Form::Letter { letter: b }) => a == b,
        (Form::Object { .. }, Form::Letter { .. }) | (Form::Letter { .. }, Form::Object { .. }) => {
            false
        }
    }
}

fn is_same_size(asked: &Form, seen: &Form) -> bool {
    match (asked, seen) {
        (Form::Object { size: a, .. }, Form::Object { size: b, .. }) => a == b,
        _ => asked == seen,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a few hundred at most")]
fn share(part: usize, all: usize) -> f64 {
    part as f64 / all as f64
}

impl Marks {
    /// Of the things' own marks.
    fn sum(&self) -> f64 {
        self.colour + self.form + self.size + self.place
    }

    fn add(&mut self, other: &Self) {
        self.background += other.background;
        self.colour += other.colour;
        self.form += other.form;
        self.size += other.size;
        self.place += other.place;
        self.whole += other.whole;
    }

    fn divided(self, by: f64) -> Self {
        Self {
            background: self.background / by,
            colour: self.colour / by,
            form: self.form / by,
            size: self.size / by,
            place: self.place / by,
            whole: self.whole / by,
        }
    }
}

/// The marks of many pictures.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    sums: BTreeMap<Kind, (usize, Marks)>,
}

impl Tally {
    /// Takes one picture in.
    pub fn add(&mut self, kind: Kind, marks: &Marks) {
        let (count, sum) = self.sums.entry(kind).or_default();
        *count += 1;
        sum.add(marks);
    }

    /// The mean of each mark; all 0 where there was no picture.
    pub fn shares(&self, kind: Kind) -> Marks {
        let (count, sum) = self.sums.get(&kind).copied().unwrap_or_default();
        sum.divided(share(count.max(1), 1))
    }
}

/// A table in Markdown, in percent.
impl fmt::Display for Tally {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            out,
            "| | background | colour | shape or letter | size | place | everything |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|")?;
        for (kind, (count, _)) in &self.sums {
            let name = match kind {
                Kind::Single => "one object",
                Kind::Pair => "two objects",
                Kind::Letter => "one letter",
            };
            let marks = self.shares(*kind);
            let cells = [
                marks.background,
                marks.colour,
                marks.form,
                marks.size,
                marks.place,
                marks.whole,
            ];
            let cells: Vec<_> = cells.map(|share| format!("{:.1} %", 100.0 * share)).into();
            writeln!(out, "| {name} ({count}) | {} |", cells.join(" | "))?;
        }
        Ok(())
    }
}
