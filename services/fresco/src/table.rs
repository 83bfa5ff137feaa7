//! Text in columns, and times for people. Pure.

use protocol::UnixMillis;

/// Lines of cells, each column as wide as its widest cell. The last one is not padded.
pub(crate) fn lines(head: &[&str], rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        longest.max(head[column].chars().count())
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let padded = cells
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let head = line(&mut head.iter().copied());
    let rows = rows
        .iter()
        .map(|row| line(&mut row.iter().map(String::as_str)));
    std::iter::once(head).chain(rows).collect()
}

/// How long ago `then` was: one number, as exact as it is of use.
pub(crate) fn ago(then: UnixMillis, now: UnixMillis) -> String {
    let ms = now.saturating_sub(then);
    match ms / 1_000 {
        0..10 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let rows = [row(["a", "long one", "x"]), row(["äöü", "", ""])];
        let expected = ["ID   STATE     HOLDS", "a    long one  x", "äöü"];
        assert_eq!(lines(&["ID", "STATE", "HOLDS"], &rows), expected);
        assert_eq!(lines(&["ID"], &[]), ["ID"]);
    }

    #[test]
    fn times_are_as_exact_as_they_are_of_use() {
        let table = [
            (0, "0.0 s"),
            (9_960, "9.9 s"),
            (10_000, "10 s"),
            (119_000, "119 s"),
            (120_000, "2 min"),
            (7_199_000, "119 min"),
            (7_200_000, "2 h"),
            (172_800_000, "2 d"),
        ];
        for (ms, text) in table {
            assert_eq!(ago(5, 5 + ms), text);
        }
        assert_eq!(ago(9, 5), "0.0 s", "clocks differ");
    }
}
