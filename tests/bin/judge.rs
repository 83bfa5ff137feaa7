//! `judge`: what pictures of the demo model show, without a network.

use std::{fs, path::PathBuf};

use clap::Parser;
use integration::judge::{Palette, Picture, Tally, held_out, mark, read};

/// Says what pictures of the demo model show, one line of JSON each
#[derive(Debug, Parser)]
struct Args {
    /// PNG files of 128 x 128 px
    pictures: Vec<PathBuf>,

    /// Folder with 000.png to 599.png, painted from the held-out captions in their order: prints the shares of what is
    /// right instead, and the captions whose pictures are not
    #[arg(long, value_name = "FOLDER", conflicts_with = "pictures")]
    held_out: Option<PathBuf>,
}

#[expect(clippy::print_stdout, reason = "it is a program")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let palette = Palette::load();
    for path in &args.pictures {
        let picture = Picture::decode(&fs::read(path)?)?;
        println!("{}", serde_json::to_string(&read(&picture, &palette))?);
    }
    let Some(folder) = &args.held_out else {
        return Ok(());
    };
    let mut tally = Tally::default();
    for (index, caption) in held_out().iter().enumerate() {
        let path = folder.join(format!("{index:03}.png"));
        // A part of them is a part of the table.
        if !path.exists() {
            continue;
        }
        let marks = mark(
            caption,
            &read(&Picture::decode(&fs::read(path)?)?, &palette),
        );
        if marks.whole < 1.0 {
            println!("{index:03} not right: {}", caption.caption);
        }
        tally.add(caption.kind, &marks);
    }
    print!("{tally}");
    Ok(())
}
